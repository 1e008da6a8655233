"""Replays: a trajectory begins with the actions of a stored one, and the policy continues from the resulting state.

Environments need not be copied: the environment is reset with the stored trajectory's seed and receives the same calls, which must return
the same results. Anything else is a fault, and the trajectory is invalid. Replayed actions were not sampled, so their log-probabilities are
recorded as zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl.engines.base import Generation, GenerationStop
from rl.envs.base import EnvironmentFault, FaultKind
from rl.renderers.base import ActionTurn, NotExpressible, RolloutDialect, Schema
from warehouse.records import Call, StopReason


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """An action to repeat; `brought` are the results of its calls the first time, None if it has not been taken before."""

    action: ActionTurn
    brought: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """The environment's seed and the first turns of a trajectory; the last one may end it."""

    seed: int
    turns: tuple[ReplayedTurn, ...]

    def generation(self, number: int, dialect: RolloutDialect, tools: Sequence[Schema]) -> Generation | None:
        """Return the action of turn `number` as if sampled; None if the policy takes it.

        Raises:
            EnvironmentFault: the dialect cannot express it.
        """
        if number >= len(self.turns):
            return None
        try:
            ids = dialect.action_ids(self.turns[number].action, tools)
        except NotExpressible as error:
            raise EnvironmentFault(str(error), FaultKind.REPLAY) from error
        return Generation(ids, (0.0,) * len(ids), GenerationStop.STOP, (0,) * len(ids))

    def check(self, number: int, calls: Sequence[Call], stop: StopReason | None) -> None:
        """Raise EnvironmentFault if turn `number` gave other results, or ended the trajectory before the last replayed turn."""
        if number >= len(self.turns) or stop is StopReason.FAULT:
            return
        brought = self.turns[number].brought
        if brought is not None and " ".join(call.observation.strip() for call in calls) != " ".join(brought):
            raise EnvironmentFault(f"turn {number} returned other results than before", FaultKind.REPLAY)
        if stop is not None and number < len(self.turns) - 1:
            raise EnvironmentFault(f"turn {number} ended the trajectory ({stop})", FaultKind.REPLAY)
