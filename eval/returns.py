"""Verifier of what an environment paid: a game, a judge or a server says itself how well it went.

The value is the return, the sum of the rewards of all turns. It is a success from 1 on, or from what the task's provenance holds under
`success`. Where nothing was paid although the environment answered calls, it does not pay at all, and the verifier cannot judge.
"""

from __future__ import annotations

from dataclasses import dataclass

from warehouse.records import Outcome, Score, StopReason, Task, Trajectory

ANSWERED_CALL = "ok"
"""The outcome of a call that the environment answered."""


@dataclass(frozen=True, slots=True)
class EnvironmentReward:
    """`environment`: the return of the trajectory."""

    name: str = "environment"
    version: str = "1"

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """The return; invalid after a fault, and where the environment pays nothing."""
        rewards = [turn.reward for turn in trajectory.turns if turn.reward is not None]
        if trajectory.stop_reason is StopReason.FAULT or trajectory.outcome is Outcome.INVALID:
            return self._invalid(trajectory, trajectory.error or "the trajectory ended by a fault")
        if not rewards and any(turn.tool_outcome == ANSWERED_CALL for turn in trajectory.turns):
            return self._invalid(trajectory, "the environment paid nothing, not even 0")
        value = float(sum(rewards))
        reached = value >= float(task.provenance.get("success", 1.0))
        return Score(trajectory.id, self.name, self.version, value, Outcome.SUCCESS if reached else Outcome.FAILURE)

    def _invalid(self, trajectory: Trajectory, reason: str) -> Score:
        return Score(trajectory.id, self.name, self.version, None, Outcome.INVALID, reason)
