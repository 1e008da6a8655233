"""Whether style gives away which action of a decision was taken: how often a classifier on length and words finds it.

The classifier sees the options of a step and nothing else, neither the question nor what came before. It is a conditional logit: the chance
of an option is the softmax, over the options of its step, of a linear function of its length and of which words it has (by hash). It is
fitted by L-BFGS with a ridge penalty on all trajectories but one fold, and tried on that fold. Where style says nothing it finds the taken
action as often as chance does.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from synth.has.decisions import Decision, DecisionRecord
from synth.questions.text_comparison import plain

FOLDS = 5
_BUCKETS = 4_096
"""Places of words; two that share one are rare among the words of a set of decisions, and cost the classifier little."""
_RIDGE = 1.0
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StyleLeak:
    """How many choices were looked at, the share in which the classifier found the taken action, and that of chance."""

    choices: int
    found: float
    chance: float

    @property
    def excess(self) -> float:
        """By how much the classifier is better than chance; below 0 where it is worse."""
        return self.found - self.chance


def style_leak(records: Sequence[DecisionRecord]) -> StyleLeak | None:
    """How well the taken action is found; None where there are fewer records with a choice than folds."""
    folds = [[decision for decision in record.steps if decision.is_choice] for record in records]
    folds = [choices for choices in folds if choices]
    if len(folds) < FOLDS:
        return None
    parts = [[decision for choices in folds[number::FOLDS] for decision in choices] for number in range(FOLDS)]
    found = 0
    for number, tried in enumerate(parts):
        weights = _fit([decision for place, part in enumerate(parts) if place != number for decision in part])
        found += sum(_guess(decision, weights) == decision.chosen for decision in tried)
    every = [decision for part in parts for decision in part]
    return StyleLeak(len(every), found / len(every), float(np.mean([1 / len(decision.options) for decision in every])))


def _guess(decision: Decision, weights: Vector) -> int:
    return int(np.argmax(_features([decision]) @ weights))


def _features(decisions: Sequence[Decision]) -> csr_matrix:
    """A row an option: its length in characters and in words, as logarithms, and a 1 for each word."""
    places, columns, values = [0], list[int](), list[float]()
    for text in (option.text for decision in decisions for option in decision.options):
        words = plain(text).split()
        columns += [0, 1, *sorted({2 + zlib.crc32(word.encode()) % _BUCKETS for word in words})]
        values += [float(np.log1p(len(text))), float(np.log1p(len(words)))]
        values += [1.0] * (len(columns) - len(values))
        places.append(len(columns))
    return csr_matrix((values, columns, places), shape=(len(places) - 1, _BUCKETS + 2))


def _fit(decisions: Sequence[Decision]) -> Vector:
    """The weights that make the taken actions likeliest, less the penalty."""
    sizes = np.array([len(decision.options) for decision in decisions])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    taken = starts + np.array([decision.chosen for decision in decisions])
    features = _features(decisions)

    def loss(weights: Vector) -> tuple[float, Vector]:
        scores = features @ weights
        scores = scores - np.repeat(np.maximum.reduceat(scores, starts), sizes)
        odds = np.exp(scores)
        sums = np.add.reduceat(odds, starts)
        residual = odds / np.repeat(sums, sizes)
        residual[taken] -= 1
        value = float(np.sum(np.log(sums)) - np.sum(scores[taken]) + _RIDGE * weights @ weights / 2)
        return value, features.T @ residual + _RIDGE * weights

    return np.asarray(minimize(loss, np.zeros(_BUCKETS + 2), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x)
