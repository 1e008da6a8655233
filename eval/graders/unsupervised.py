"""Verifiers without accepted answers: agreement and confidence. Their names have a prefix, and their scores never become an outcome.

Agreement is self-consistency (Wang et al. 2022, arXiv 2203.11171): the share of a group's attempts with the same answer, as parsed by the
task's grader. Its verdict is that of majority voting (TTRL, arXiv 2504.16084): success for the answer that more attempts gave than any
other. Confidence is the geometric mean of the policy's token probabilities in its answer action.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from eval.graders.base import UNSUPERVISED, Attempt, graded, invalid, why_not_finished
from eval.graders.choice import SHORT_ANSWERS, Verifiers
from warehouse.records import NOT_RUN, Score, Task, Trajectory

SURE = 0.5
"""Minimum confidence of a success."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Scores an attempt by the share of its group that agrees; a group is one policy's attempts at one task in one step."""

    name: str = f"{UNSUPERVISED}agreement"
    version: str = "4"
    verifiers: Verifiers = SHORT_ANSWERS
    """Verifiers of the tasks: answers agree if their grader gives them the same key."""

    def verify_all(self, attempts: Sequence[Attempt]) -> list[Score]:
        """Return a score for each attempt, in order; attempts that ended in a fault do not vote."""
        groups: dict[Any, list[Hashable | None]] = defaultdict(list)
        for task, trajectory in attempts:
            if not why_not_finished(trajectory):
                groups[_group(trajectory)].append(self.verifiers.read(task, trajectory.answer))
        return [self._score(task, trajectory, groups[_group(trajectory)]) for task, trajectory in attempts]

    def _score(self, task: Task, trajectory: Trajectory, answers: Sequence[Hashable | None]) -> Score:
        if reason := why_not_finished(trajectory):
            return invalid(self, trajectory, reason)
        if len(answers) < 2:
            return invalid(self, trajectory, "the group has a single attempt")
        answer = self.verifiers.read(task, trajectory.answer)
        if answer is None:
            return graded(self, trajectory, 0.0, False)
        counts = Counter(other for other in answers if other is not None)
        most = max(count for other, count in counts.items() if other != answer) if len(counts) > 1 else 0
        return graded(self, trajectory, counts[answer] / len(answers), counts[answer] > most)


@dataclass(frozen=True, slots=True)
class Confidence:
    """Scores an attempt by the policy's confidence in its answer action; invalid without recorded log-probabilities."""

    name: str = f"{UNSUPERVISED}confidence"
    version: str = "1"

    def verify_all(self, attempts: Sequence[Attempt]) -> list[Score]:
        return [self._score(trajectory) for _, trajectory in attempts]

    def _score(self, trajectory: Trajectory) -> Score:
        if reason := why_not_finished(trajectory):
            return invalid(self, trajectory, reason)
        if not (trajectory.answer or "").strip():
            return graded(self, trajectory, 0.0, False)
        last = next(turn for turn in reversed(trajectory.turns) if turn.tool_outcome != NOT_RUN)
        if not last.action_logprobs:
            return invalid(self, trajectory, "the answer has no log-probabilities")
        value = math.exp(math.fsum(last.action_logprobs) / len(last.action_logprobs))
        return graded(self, trajectory, value, value >= SURE)


def _group(trajectory: Trajectory) -> tuple[Any, ...]:
    return trajectory.task_key, trajectory.policy, trajectory.stage, trajectory.wheel_turn, trajectory.step, trajectory.suite
