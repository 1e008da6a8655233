"""Configuration of environments and of the workers they run in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from rl.placement import Bundle, Reservation
from warehouse.settings import Section


class EnvironmentLimits(Section):
    """Workers of an environment."""

    workers: PositiveInt = 1
    """Worker processes, each running many environments."""
    cpus: NonNegativeFloat = 0.5
    """Ray CPUs per worker."""
    gpus: NonNegativeFloat = 0
    """Ray GPUs per worker."""
    memory_gib: PositiveFloat | None = None
    """Memory limit per worker, enforced by the kernel."""
    step_timeout_seconds: PositiveFloat = 60.0
    """Deadline of a reset or step with everything below it, after which it is a fault."""
    image: str | None = None
    """Container image of the workers, with the same Python, Ray and package; needs podman."""


class EnvironmentKindConfig(EnvironmentLimits):
    """Settings of one kind of environment."""

    factory: str | None = None
    """Implementation: a registered name, `module:attribute` or `file.py:attribute`; None: the kind's own name."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment (docs/environments.md)."""


class EnvironmentPoolConfig(EnvironmentLimits):
    """Environment workers; defaults for all kinds."""

    kinds: dict[str, EnvironmentKindConfig] = Field(default_factory=dict)
    """Settings by kind of environment."""
    fault_window: PositiveInt = 32
    """Recent trajectories or tool calls that the circuit breaker considers."""
    max_fault_share: float = Field(default=0.5, ge=0, le=1)
    """Share of faults above which rollouts stop; 1 disables the circuit breaker."""

    def kind(self, name: str) -> EnvironmentKindConfig:
        """The settings of the environment `name`."""
        own = self.kinds.get(name, EnvironmentKindConfig())
        common = {field: getattr(self, field) for field in EnvironmentLimits.model_fields if field not in own.model_fields_set}
        return own.model_copy(update=common)

    @property
    def listed(self) -> dict[str, str]:
        """Configured names for tasks, in addition to registered ones, each with its code."""
        return {name: own.factory or name for name, own in self.kinds.items()}

    def reservations(self, names: Iterable[str]) -> list[Reservation]:
        """What the workers of the environments called `names` reserve."""
        kinds = {name: self.kind(name) for name in sorted(set(names))}
        key = "rollout.environments"
        return [
            Reservation(f"{key}.kinds.{name}" if name in self.kinds else key, (Bundle(kind.cpus, kind.gpus),) * kind.workers)
            for name, kind in kinds.items()
        ]

    @property
    def reserved_cpus(self) -> float:
        """Ray CPUs for all configured kinds, and for four others."""
        kinds = [self.kind(name) for name in self.kinds]
        return sum(kind.workers * kind.cpus for kind in kinds) + 4 * self.workers * self.cpus
