"""What can be said of an answer without knowing the right one. Such a score is marked by its name, and is no trajectory's outcome.

Agreement is self-consistency (Wang et al. 2022, arXiv 2203.11171): the share of a group's attempts that gave the same answer. Its
verdict is majority voting's (TTRL, arXiv 2504.16084): success for the one answer that more attempts gave than any other. Confidence is
the geometric mean of the probabilities that the policy gave to the tokens of its answer action.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.answers import Key, key_of
from eval.verifier import UNSUPERVISED, Attempt, why_not_finished
from warehouse.records import NOT_RUN, Outcome, Score, Trajectory

SURE = 0.5
"""The confidence from which on the verdict is success."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Scores each attempt by how many of its group agree with it; a group is what one policy tried on one task at one step."""

    name: str = f"{UNSUPERVISED}agreement"
    version: str = "1"

    def verify_all(self, attempts: Sequence[Attempt]) -> list[Score]:
        """A score for each attempt, in their order; those that ended by a fault take no part."""
        groups: dict[Any, list[Key | None]] = defaultdict(list)
        for _, trajectory in attempts:
            if not why_not_finished(trajectory):
                groups[_group(trajectory)].append(_answer(trajectory))
        return [self._score(trajectory, groups[_group(trajectory)]) for _, trajectory in attempts]

    def _score(self, trajectory: Trajectory, answers: Sequence[Key | None]) -> Score:
        if reason := why_not_finished(trajectory):
            return Score(trajectory.id, self.name, self.version, None, Outcome.INVALID, reason)
        if len(answers) < 2:
            return Score(trajectory.id, self.name, self.version, None, Outcome.INVALID, "the group is a single attempt")
        answer = _answer(trajectory)
        if answer is None:
            return Score(trajectory.id, self.name, self.version, 0.0, Outcome.FAILURE)
        counts = Counter(other for other in answers if other is not None)
        most = max(count for other, count in counts.items() if other != answer) if len(counts) > 1 else 0
        verdict = Outcome.SUCCESS if counts[answer] > most else Outcome.FAILURE
        return Score(trajectory.id, self.name, self.version, counts[answer] / len(answers), verdict)


@dataclass(frozen=True, slots=True)
class Confidence:
    """Scores an attempt by how sure the policy was of its answer action; invalid where no log-probabilities were recorded."""

    name: str = f"{UNSUPERVISED}confidence"
    version: str = "1"

    def verify_all(self, attempts: Sequence[Attempt]) -> list[Score]:
        """A score for each attempt, in their order."""
        return [self._score(trajectory) for _, trajectory in attempts]

    def _score(self, trajectory: Trajectory) -> Score:
        if reason := why_not_finished(trajectory):
            return Score(trajectory.id, self.name, self.version, None, Outcome.INVALID, reason)
        if _answer(trajectory) is None:
            return Score(trajectory.id, self.name, self.version, 0.0, Outcome.FAILURE)
        last = next(turn for turn in reversed(trajectory.turns) if turn.tool_outcome != NOT_RUN)
        if not last.action_logprobs:
            return Score(trajectory.id, self.name, self.version, None, Outcome.INVALID, "the answer has no log-probabilities")
        value = math.exp(math.fsum(last.action_logprobs) / len(last.action_logprobs))
        return Score(trajectory.id, self.name, self.version, value, Outcome.SUCCESS if value >= SURE else Outcome.FAILURE)


def _answer(trajectory: Trajectory) -> Key | None:
    key = None if trajectory.answer is None else key_of(trajectory.answer)
    return key if key and key[0] else None


def _group(trajectory: Trajectory) -> tuple[Any, ...]:
    return trajectory.task_key, trajectory.policy, trajectory.stage, trajectory.wheel_turn, trajectory.step, trajectory.suite
