"""Parts that know no accepted answer: how far a group agrees, and how sure the policy is of what it answered.

The figures are those of `eval.unsupervised`; as rewards they are TTRL's (arXiv 2504.16084) and RLSC's (arXiv 2506.06395).
"""

from __future__ import annotations

from collections.abc import Sequence

from eval.unsupervised import Agreement, Confidence
from eval.verifier import Attempt
from rl.rewards.part import Grounds, Value
from warehouse.records import Score


def agreement(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """The share of the group that gave the same answer; 0 without one."""
    return [_value(score) for score in Agreement().verify_all(attempts)]


def confidence(attempts: Sequence[Attempt], grounds: Grounds) -> list[Value]:
    """The geometric mean of the probabilities of the tokens of the answer's action; 0 without an answer."""
    return [_value(score) for score in Confidence().verify_all(attempts)]


def _value(score: Score) -> Value:
    return Value.unknown(score.error or "it could not be judged") if score.value is None else Value(score.value)
