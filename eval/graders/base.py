"""The verifier interface: a task and a trajectory in, a score out.

A verifier that cannot judge returns *invalid* with a reason, never a zero for what is not the policy's fault. Its version changes whenever
its verdicts may change, so that scores of both versions can coexist in the lake. A verifier that judges many attempts at once, because it
asks a server or compares groups, is a `BatchVerifier`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from warehouse.records import Outcome, Score, StopReason, Task, Trajectory

Attempt = tuple[Task, Trajectory]
"""A task and a trajectory that attempted it."""

UNSUPERVISED = "unsupervised:"
"""Name prefix of verifiers without accepted answers; their scores never become a trajectory's outcome."""


class Named(Protocol):
    """Identity of a verifier, as recorded in scores."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...


class Verifier(Named, Protocol):
    """Judges trajectories. Pure: judging again gives the same score."""

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """Score `trajectory` as an attempt at `task`."""
        ...


@runtime_checkable
class BatchVerifier(Named, Protocol):
    """Judges many attempts together."""

    def verify_all(self, attempts: Sequence[Attempt]) -> list[Score]:
        """Return a score for each attempt, in order."""
        ...


def why_not_finished(trajectory: Trajectory) -> str | None:
    """Return the fault that ended a trajectory and prevents verification, or None."""
    if trajectory.stop_reason is StopReason.FAULT or trajectory.outcome is Outcome.INVALID:
        return trajectory.error or "the trajectory ended with a fault"
    return None


def graded(verifier: Named, trajectory: Trajectory, value: float, success: bool, read: str | None = None) -> Score:
    """Create the score of a judged trajectory; `read` is what was read as its answer."""
    verdict = Outcome.SUCCESS if success else Outcome.FAILURE
    return Score(trajectory.id, verifier.name, verifier.version, value, verdict, read=read)


def invalid(verifier: Named, trajectory: Trajectory, reason: str) -> Score:
    """Create the score of a trajectory that cannot be judged."""
    return Score(trajectory.id, verifier.name, verifier.version, None, Outcome.INVALID, reason)


def verify_all(verifier: Verifier | BatchVerifier, attempts: Sequence[Attempt]) -> list[Score]:
    """Return a score for each attempt, in order, with either kind of verifier."""
    if isinstance(verifier, BatchVerifier):
        return verifier.verify_all(attempts)
    return [verifier.verify(task, trajectory) for task, trajectory in attempts]
