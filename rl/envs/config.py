"""Configuration of environments and their workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from rl.placement import Bundle, Reservation
from warehouse.settings import Section


class EnvironmentLimits(Section):
    """Resources and limits of an environment's workers."""

    workers: PositiveInt = 1
    """Number of worker processes; each runs many environments concurrently."""
    cpus: NonNegativeFloat = 0.5
    """Ray CPUs per worker."""
    gpus: NonNegativeFloat = 0
    """Ray GPUs per worker."""
    memory_gib: PositiveFloat | None = None
    """Memory limit per worker, in GiB, enforced by the kernel; None: no limit."""
    step_timeout_seconds: PositiveFloat = 60.0
    """Maximum seconds for a reset or step, including all calls below it; exceeding it is a fault."""
    image: str | None = None
    """Container image of the workers, with the same versions of Python, Ray and this package; needs podman."""


class EnvironmentKindConfig(EnvironmentLimits):
    """Settings of one kind of environment."""

    factory: str | None = None
    """Implementation: a registered name, `module:attribute` or `file.py:attribute`; None uses the kind's own name."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment (docs/environments.md)."""


class EnvironmentPoolConfig(EnvironmentLimits):
    """Environment workers; these values are the defaults of all kinds."""

    kinds: dict[str, EnvironmentKindConfig] = Field(default_factory=dict)
    """Settings by kind of environment."""
    fault_window: PositiveInt = 32
    """Number of recent trajectories or tool calls that the circuit breaker considers."""
    max_fault_share: float = Field(default=0.5, ge=0, le=1)
    """Fraction of faults above which rollouts stop; 1 disables the circuit breaker."""

    def kind(self, name: str) -> EnvironmentKindConfig:
        """Settings of the environment `name`, with defaults filled in."""
        own = self.kinds.get(name, EnvironmentKindConfig())
        common = {field: getattr(self, field) for field in EnvironmentLimits.model_fields if field not in own.model_fields_set}
        return own.model_copy(update=common)

    @property
    def listed(self) -> dict[str, str]:
        """Implementation by configured name; tasks may use these names in addition to registered ones."""
        return {name: own.factory or name for name, own in self.kinds.items()}

    def reservations(self, names: Iterable[str]) -> list[Reservation]:
        """Reservations of the workers of the environments `names`."""
        kinds = {name: self.kind(name) for name in sorted(set(names))}
        key = "rollout.environments"
        return [
            Reservation(f"{key}.kinds.{name}" if name in self.kinds else key, (Bundle(kind.cpus, kind.gpus),) * kind.workers)
            for name, kind in kinds.items()
        ]

    @property
    def reserved_cpus(self) -> float:
        """Ray CPUs for all configured kinds and for four more with default settings."""
        kinds = [self.kind(name) for name in self.kinds]
        return sum(kind.workers * kind.cpus for kind in kinds) + 4 * self.workers * self.cpus
