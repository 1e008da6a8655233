"""What environments and tools are doing, as values: for a live view, for a test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EnvironmentFigures:
    """One kind of environment: its workers, the trajectories on them, and how many workers were replaced so far."""

    name: str
    workers: int
    trajectories: int
    replaced: int


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """How many of the last outcomes of an environment (`unit` trajectories) or a tool (`unit` calls) were faults."""

    kind: str
    name: str
    unit: str
    outcomes: int
    faults: int


@dataclass(frozen=True, slots=True)
class HostingFigures:
    """All environments, and the windows of the health gate; `waiting` counts trajectories that were asked for and have not ended."""

    waiting: int
    environments: tuple[EnvironmentFigures, ...]
    faults: tuple[FaultFigures, ...]
