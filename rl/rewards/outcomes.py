"""Parts that follow from the verdict on the whole trajectory and from its form, each with its source."""

from __future__ import annotations

from collections.abc import Sequence

from eval.verifier import Attempt
from rl.learning.describing import is_readable
from rl.rewards.part import Grounds, Value
from warehouse.records import Outcome, Trajectory


def outcome(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """The verifier's value; with exact match as the verifier this is Search-R1's reward (arXiv 2503.09516, §3.4)."""
    return [_verdict(trajectory) for _, trajectory in attempts]


def signed_outcome(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """+1 for a success, else -1. ReTool, arXiv 2504.11536, §2.2; ToRL has the same."""
    return [Value(1.0 if trajectory.outcome is Outcome.SUCCESS else -1.0) for _, trajectory in attempts]


def well_formed(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """1 where every action could be read and the last gave an answer, else 0."""
    return [Value(float(_is_well_formed(trajectory))) for _, trajectory in attempts]


def format_ladder(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """Right and well formed 1, right 0.8, wrong and well formed 0.2, wrong 0.1, no answer 0. Search-R1, `qa_em_format.py`.

    There, «well formed» is that think, search, information and answer follow one another; here, that every action could be read.
    """
    return [Value(_rung(trajectory)) for _, trajectory in attempts]


def _verdict(trajectory: Trajectory) -> Value:
    return Value.unknown("no verifier has spoken") if trajectory.reward is None else Value(trajectory.reward)


def _is_well_formed(trajectory: Trajectory) -> bool:
    return trajectory.answer is not None and all(map(is_readable, trajectory.turns))


def _rung(trajectory: Trajectory) -> float:
    if trajectory.answer is None:
        return 0.0
    right = trajectory.outcome is Outcome.SUCCESS
    if _is_well_formed(trajectory):
        return 1.0 if right else 0.2
    return 0.8 if right else 0.1
