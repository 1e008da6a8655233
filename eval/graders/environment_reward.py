"""Verifier of what an environment paid: a game, a judge or a server says itself how well it went.

The value is the return, the sum of what all calls were paid; a turn's own reward is not looked at, for RL writes its composed reward
there. It is a success from 1 on, or from what the task's provenance holds under `success`. An environment that saw a trajectory to its
end, answered its calls and paid nothing, not even 0, does not pay at all, and the verifier cannot judge. One that was not asked to
the end, because a limit came first, may pay only there: such a trajectory earned nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from eval.graders.base import graded, invalid, why_not_finished
from warehouse.records import Score, StopReason, Task, Trajectory

ANSWERED_CALL = "ok"
"""The outcome of a call that the environment answered."""
SUCCESS = "success"
"""Where a task's provenance holds the return from which on it is solved."""


@dataclass(frozen=True, slots=True)
class EnvironmentReward:
    """`environment`: the return of the trajectory."""

    name: str = "environment"
    version: str = "2"

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """The return; invalid after a fault, where the environment pays nothing, and where `success` is no number."""
        if reason := why_not_finished(trajectory):
            return invalid(self, trajectory, reason)
        calls = [call for turn in trajectory.turns for call in turn.calls]
        rewards = [call.reward for call in calls if call.reward is not None]
        answered = any(call.outcome == ANSWERED_CALL for call in calls)
        if not rewards and answered and trajectory.stop_reason is StopReason.ANSWERED:
            return invalid(self, trajectory, "the environment paid nothing, not even 0")
        least = task.provenance.get(SUCCESS, 1.0)
        if isinstance(least, bool) or not isinstance(least, int | float):
            return invalid(self, trajectory, f"the task is a success from {least!r:.40} on, which is no number")
        value = float(sum(rewards))
        return graded(self, trajectory, value, value >= least)
