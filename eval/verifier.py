"""The seam of judgement: a verifier looks at a task and one trajectory and answers with a score.

A verifier that cannot judge says *invalid* with the reason; it never says zero for what is not the policy's doing. Its
version changes whenever its verdicts could, so that scores of both versions can stand side by side in the lake.
"""

from __future__ import annotations

from typing import Protocol

from warehouse.records import Score, Task, Trajectory


class Verifier(Protocol):
    """Anything that judges trajectories; pure, so that judging again gives the same score."""

    @property
    def name(self) -> str:
        """Name of the verifier as it stands in the table `scores`."""
        ...

    @property
    def version(self) -> str:
        """Version of its verdicts."""
        ...

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """The score of `trajectory` as an attempt at `task`."""
        ...
