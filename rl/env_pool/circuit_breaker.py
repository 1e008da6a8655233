"""The circuit breaker: stops rollouts whose environment or tool is down, so that no policy trains on what is left.

A fault makes one trajectory invalid, and a few cost only time. If most recent ones failed, something is down. A sliding window of outcomes
is kept for each environment (by trajectory) and each tool (by call), and is judged once it is full.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from warehouse.errors import WorkFailed


@dataclass(frozen=True, slots=True)
class EnvironmentFigures:
    """One kind of environment: its workers, their current trajectories, and the number of replaced workers."""

    name: str
    workers: int
    trajectories: int
    replaced: int


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """Faults among the last outcomes of an environment (`unit` trajectories) or a tool (`unit` calls)."""

    kind: str
    name: str
    unit: str
    outcomes: int
    faults: int


@dataclass(frozen=True, slots=True)
class EnvironmentPoolFigures:
    """All environments, and the circuit breaker's windows; `waiting` counts requested trajectories that have not ended."""

    waiting: int
    environments: tuple[EnvironmentFigures, ...]
    faults: tuple[FaultFigures, ...]


class CircuitOpen(WorkFailed):
    """Too many recent trajectories or calls were faults; the text names whose."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The environment or tool of that name; `unit` is what is counted."""

    kind: str
    name: str
    unit: str


def environment(name: str) -> Subject:
    """An environment, by trajectory."""
    return Subject("environment", name, "trajectories")


def tool(name: str) -> Subject:
    """A tool, by call."""
    return Subject("tool", name, "calls")


class CircuitBreaker:
    """Windows of outcomes; `check` raises if the share of faults in one is too high."""

    def __init__(self, window: int, max_share: float) -> None:
        """Judge the last `window` outcomes of each subject; a share of faults above `max_share`, in [0, 1], is too high."""
        self._window = window
        self._max_share = max_share
        self._outcomes: dict[Subject, deque[bool]] = {}
        self._last_faults: dict[Subject, str] = {}

    def record(self, subject: Subject, fault: str | None) -> None:
        """Count an outcome: the text of a fault, or None."""
        self._outcomes.setdefault(subject, deque(maxlen=self._window)).append(fault is not None)
        if fault is not None:
            self._last_faults[subject] = fault

    def faults(self, subject: Subject) -> int:
        """Number of faults in the window."""
        return sum(self._outcomes.get(subject, ()))

    def figures(self) -> tuple[FaultFigures, ...]:
        return tuple(FaultFigures(s.kind, s.name, s.unit, len(window), sum(window)) for s, window in list(self._outcomes.items()))

    def check(self) -> None:
        """Raise CircuitOpen, naming every environment and tool with too many faults in a full window."""
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
