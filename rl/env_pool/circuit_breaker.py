"""Circuit breaker: stops rollouts when an environment or tool is down.

A fault makes one trajectory invalid, and occasional faults only cost time. To detect an outage, a sliding window of outcomes is kept per
environment (by trajectory) and per tool (by call), and checked once it is full.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from warehouse.errors import WorkFailed


@dataclass(frozen=True, slots=True)
class EnvironmentFigures:
    """One kind of environment: number of workers, current trajectories, and replaced workers."""

    name: str
    workers: int
    trajectories: int
    replaced: int


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """Faults in the window of an environment (`unit` is "trajectories") or a tool (`unit` is "calls")."""

    kind: str
    name: str
    unit: str
    outcomes: int
    faults: int


@dataclass(frozen=True, slots=True)
class EnvironmentPoolFigures:
    """All environments and circuit breaker windows; `waiting` counts requested trajectories that have not ended."""

    waiting: int
    environments: tuple[EnvironmentFigures, ...]
    faults: tuple[FaultFigures, ...]


class CircuitOpen(WorkFailed):
    """Too many recent trajectories or calls were faults; the message names the environments and tools."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An environment or tool; `unit` is what is counted."""

    kind: str
    name: str
    unit: str


def environment(name: str) -> Subject:
    return Subject("environment", name, "trajectories")


def tool(name: str) -> Subject:
    return Subject("tool", name, "calls")


class CircuitBreaker:
    """Sliding windows of outcomes; `check` raises if the fraction of faults in one is too high."""

    def __init__(self, window: int, max_share: float) -> None:
        """Keep the last `window` outcomes per subject and tolerate a fraction of faults up to `max_share`, in [0, 1]."""
        self._window = window
        self._max_share = max_share
        self._outcomes: dict[Subject, deque[bool]] = {}
        self._last_faults: dict[Subject, str] = {}

    def record(self, subject: Subject, fault: str | None) -> None:
        """Record an outcome: the text of a fault, or None."""
        self._outcomes.setdefault(subject, deque(maxlen=self._window)).append(fault is not None)
        if fault is not None:
            self._last_faults[subject] = fault

    def faults(self, subject: Subject) -> int:
        return sum(self._outcomes.get(subject, ()))

    def figures(self) -> tuple[FaultFigures, ...]:
        return tuple(FaultFigures(s.kind, s.name, s.unit, len(window), sum(window)) for s, window in list(self._outcomes.items()))

    def check(self) -> None:
        """Raise CircuitOpen if a full window has too many faults; names every such environment and tool."""
        failing = [subject for subject in self._outcomes if self._is_failing(subject)]
        if failing:
            raise CircuitOpen("rollouts are stopped: " + "; ".join(self._describe(subject) for subject in failing) + ".")

    def _is_failing(self, subject: Subject) -> bool:
        outcomes = self._outcomes[subject]
        return len(outcomes) == self._window and sum(outcomes) > self._max_share * self._window

    def _describe(self, subject: Subject) -> str:
        return (
            f"the {subject.kind} {subject.name!r} failed in {self.faults(subject)} of its last {self._window} {subject.unit} "
            f"(the last time: {self._last_faults[subject]})"
        )
