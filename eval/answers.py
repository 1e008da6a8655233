"""Short answers compared as SQuAD compares them.

Normalisation in SQuAD's order: lower case, strip ASCII punctuation, drop the articles a, an and the, collapse whitespace
(Rajpurkar et al. 2016, `evaluate-v1.1.py`; Search-R1's `qa_em.py` does the same). A text of which nothing is left by that,
as «The The» or «!!!», is compared by its collapsed lower case instead, so that emptiness never equals emptiness.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(text: str) -> str:
    """`text` in the form in which answers are compared; empty only where `text` holds nothing but whitespace."""
    lowered = text.lower()
    bare = _collapse(_ARTICLES.sub(" ", lowered.translate(_PUNCTUATION)))
    return bare or _collapse(lowered)


def exact_match(prediction: str, golds: Iterable[str]) -> bool:
    """Whether `prediction` equals one of the accepted answers after normalisation; an empty prediction equals none."""
    normalized = normalize(prediction)
    return bool(normalized) and any(normalized == normalize(gold) for gold in golds)


def sub_match(prediction: str, golds: Iterable[str]) -> bool:
    """Whether an accepted answer stands in `prediction` as whole words. A lenient figure of its own, never a reward."""
    words = f" {normalize(prediction)} "
    return any(f" {normalized} " in words for normalized in map(normalize, golds) if normalized)


def f1(prediction: str, golds: Iterable[str]) -> float:
    """The best F1 in [0, 1] over the accepted answers, of the bags of normalised words: 2 · shared / (words + words)."""
    return max((_bag_f1(prediction, gold) for gold in golds), default=0.0)


@dataclass(frozen=True, slots=True)
class SetScores:
    """How a set of predicted answers meets the set of right ones; each figure in [0, 1]."""

    precision: float
    recall: float
    f1: float
    exact: bool


def set_scores(predictions: Iterable[str], golds: Iterable[str]) -> SetScores:
    """Precision, recall and F1 over normalised answers; a repeated or empty prediction counts once or not at all.

    Nothing predicted has precision 0. Raises ValueError where `golds` holds no answer.
    """
    right = {normalized for normalized in map(normalize, golds) if normalized}
    if not right:
        raise ValueError("the set of right answers is empty")
    predicted = {normalized for normalized in map(normalize, predictions) if normalized}
    shared = len(predicted & right)
    precision = shared / len(predicted) if predicted else 0.0
    return SetScores(precision, shared / len(right), 2 * shared / (len(predicted) + len(right)), predicted == right)


def _bag_f1(prediction: str, gold: str) -> float:
    predicted, right = normalize(prediction).split(), normalize(gold).split()
    shared = (Counter(predicted) & Counter(right)).total()
    return 2 * shared / (len(predicted) + len(right)) if shared else 0.0


def _collapse(text: str) -> str:
    return " ".join(text.split())
