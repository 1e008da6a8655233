"""Configuration of environments and of the workers they run in."""

from __future__ import annotations

from typing import Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from warehouse.settings import Section


class EnvironmentLimits(Section):
    """What the workers of an environment may use, and how many there are."""

    workers: PositiveInt = 1
    """Processes, each of which runs many environments side by side."""
    cpus: NonNegativeFloat = 0.5
    """What each worker reserves of Ray's CPUs."""
    gpus: NonNegativeFloat = 0
    """What each worker reserves of Ray's GPUs."""
    memory_gib: PositiveFloat | None = None
    """What each worker may allocate beyond what it starts with; the kernel refuses more, and the worker is replaced."""
    step_timeout_seconds: PositiveFloat = 60.0
    """A reset or a step that takes longer is a fault."""
    image: str | None = None
    """Container image that the workers run in, with the same Python, Ray and this package; needs podman."""


class EnvironmentKindConfig(EnvironmentLimits):
    """One kind of environment, by the name that tasks call it by."""

    factory: str | None = None
    """What makes it where that is not the name itself: a registered name, `module:attribute` or `file.py:attribute`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment."""


class EnvironmentPoolConfig(EnvironmentLimits):
    """Workers that environments run in. What stands here holds for each kind that does not say otherwise for itself."""

    kinds: dict[str, EnvironmentKindConfig] = Field(default_factory=dict)
    """Kinds with settings of their own, by name."""
    fault_window: PositiveInt = 32
    """How many of the last trajectories of an environment, or calls of a tool, the health gate looks at."""
    max_fault_share: float = Field(default=0.5, ge=0, le=1)
    """Rollouts stop where more of them were faults; 1 switches the gate off."""

    def kind(self, name: str) -> EnvironmentKindConfig:
        """The settings of the environment called `name`."""
        own = self.kinds.get(name, EnvironmentKindConfig())
        common = {field: getattr(self, field) for field in EnvironmentLimits.model_fields if field not in own.model_fields_set}
        return own.model_copy(update=common)

    @property
    def listed(self) -> dict[str, str]:
        """The names that tasks may call environments by beside those that are registered, each with its code."""
        return {name: own.factory or name for name, own in self.kinds.items()}

    @property
    def reserved_cpus(self) -> float:
        """Room in Ray's CPUs for all kinds with settings of their own, and for four without."""
        kinds = [self.kind(name) for name in self.kinds]
        return sum(kind.workers * kind.cpus for kind in kinds) + 4 * self.workers * self.cpus
