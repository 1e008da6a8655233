"""The seam of judgement: a verifier looks at a task and one trajectory and answers with a score.

A verifier that cannot judge says *invalid* with the reason; it never says zero for what is not the policy's doing. Its
version changes whenever its verdicts could, so that scores of both versions can stand side by side in the lake. One that judges many at
once, because it asks a server or looks at whole groups, is a `BatchVerifier`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from warehouse.records import Outcome, Score, StopReason, Task, Trajectory

Attempt = tuple[Task, Trajectory]
"""A trajectory with the task that it tried."""

UNSUPERVISED = "unsupervised:"
"""What the name of a verifier begins with that looks at no accepted answer: its scores never are a trajectory's outcome."""


class Named(Protocol):
    """The identity of a verifier, as scores record it."""

    @property
    def name(self) -> str:
        """Name of the verifier as it stands in the table `scores`."""
        ...

    @property
    def version(self) -> str:
        """Version of its verdicts."""
        ...


class Verifier(Named, Protocol):
    """Anything that judges trajectories; pure, so that judging again gives the same score."""

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """The score of `trajectory` as an attempt at `task`."""
        ...


@runtime_checkable
class BatchVerifier(Named, Protocol):
    """Judges many attempts together."""

    def verify_all(self, attempts: Sequence[Attempt]) -> list[Score]:
        """A score for each attempt, in their order."""
        ...


def why_not_finished(trajectory: Trajectory) -> str | None:
    """The fault that a trajectory ended by, None where it ended by none: no verifier can judge it then."""
    if trajectory.stop_reason is StopReason.FAULT or trajectory.outcome is Outcome.INVALID:
        return trajectory.error or "the trajectory ended by a fault"
    return None


def graded(verifier: Named, trajectory: Trajectory, value: float, success: bool, read: str | None = None) -> Score:
    """The score of a trajectory that was judged, and what was read as its answer."""
    verdict = Outcome.SUCCESS if success else Outcome.FAILURE
    return Score(trajectory.id, verifier.name, verifier.version, value, verdict, read=read)


def invalid(verifier: Named, trajectory: Trajectory, reason: str) -> Score:
    """The score of a trajectory that cannot be judged: no value, and the reason."""
    return Score(trajectory.id, verifier.name, verifier.version, None, Outcome.INVALID, reason)


def verify_all(verifier: Verifier | BatchVerifier, attempts: Sequence[Attempt]) -> list[Score]:
    """A score for each attempt, in their order, by either sort of verifier."""
    if isinstance(verifier, BatchVerifier):
        return verifier.verify_all(attempts)
    return [verifier.verify(task, trajectory) for task, trajectory in attempts]
