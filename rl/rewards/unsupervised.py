"""Parts that know no accepted answer: how far a group agrees, and how sure the policy is of what it answered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from eval.answers import normalize
from rl.rewards.part import Attempt, Grounds, Value
from warehouse.records import NOT_RUN, Trajectory


def agreement(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """The share of the group that gave the same answer; 0 without one. Self-consistency, arXiv 2203.11171; as a reward TTRL, 2504.16084."""
    answers = [_answer(trajectory) for _, trajectory in attempts]
    sizes = Counter(task.key for task, _ in attempts)
    counts = Counter((task.key, answer) for (task, _), answer in zip(attempts, answers, strict=True))
    return [
        Value(0.0 if answer is None else counts[task.key, answer] / sizes[task.key])
        if sizes[task.key] > 1
        else Value.unknown("the group is a single attempt")
        for (task, _), answer in zip(attempts, answers, strict=True)
    ]


def confidence(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """The geometric mean of the probabilities of the tokens of the answer's action; 0 without an answer. RLSC, arXiv 2506.06395."""
    return [_confidence(trajectory) for _, trajectory in attempts]


def _answer(trajectory: Trajectory) -> str | None:
    return normalize(trajectory.answer) or None if trajectory.answer is not None else None


def _confidence(trajectory: Trajectory) -> Value:
    if _answer(trajectory) is None:
        return Value(0.0)
    last = next(turn for turn in reversed(trajectory.turns) if turn.tool_outcome != NOT_RUN)
    if not last.action_logprobs:
        return Value.unknown("the answer has no log-probabilities")
    return Value(math.exp(math.fsum(last.action_logprobs) / len(last.action_logprobs)))
