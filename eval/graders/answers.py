"""Short answers compared as SQuAD compares them, and what SQuAD's stripping must not make equal.

Normalisation in SQuAD's order: lower case, strip ASCII punctuation, drop the articles a, an and the, collapse whitespace
(Rajpurkar et al. 2016, `evaluate-v1.1.py`; Search-R1's `qa_em.py` does the same). A text of which nothing is left by that,
as «The The» or «!!!», is compared by its collapsed lower case instead, so that emptiness never equals emptiness.

Stripping turns 3.5 into 35, -5 into 5, 9/11 into 911, C++ into C and AB+ into AB-. An exact match therefore wants the same figures
and the same closing signs as well. It never says yes where SQuAD says no.

Several answers stand in one text only as a list, its items between `;` or `|`. A list is no answer to a question that has one.
A separator that stands in an accepted answer separates nothing.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SEPARATORS = ";|"
"""What stands between the items of a list; the oracle writes the first."""

Key = tuple[str, tuple[str, ...]]
"""What equal answers share: the normalised text, then its figures and closing signs."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_FIGURE = re.compile(r"(?:(?<![\w)\].,])(?P<sign>[-<>]=?)[$€£]?)?(?P<point>(?<![\w.])\.)?(?P<digits>\d+(?:[^\w\s]+\d+)*)")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)")
_CLOSING = re.compile(r"(?<=\w)(?:[+#]+|-)(?=[\s,.;)\]]|$)")


def normalize(text: str) -> str:
    """`text` in the form in which answers are compared; empty only where `text` holds nothing but whitespace."""
    lowered = text.lower()
    bare = _collapse(_ARTICLES.sub(" ", lowered.translate(_PUNCTUATION)))
    return bare or _collapse(lowered)


def answer_key(text: str) -> Key:
    """The key of `text`: equal for answers that count as the same."""
    return normalize(text), (*_figures(text), *_CLOSING.findall(text))


def split_items(text: str, golds: Iterable[str] = ()) -> list[str]:
    """The items of `text` as a list, empty ones left out; a separator that stands in one of `golds` separates nothing."""
    accepted = list(golds)
    separating = "".join(mark for mark in SEPARATORS if not any(mark in gold for gold in accepted))
    items = re.split(f"[{re.escape(separating)}]", text) if separating else [text]
    return [item.strip() for item in items if item.strip()]


def join_items(items: Sequence[str]) -> str:
    """The items as one answer that `split_items` takes apart again, unless every separator stands in one of them."""
    mark = next((mark for mark in SEPARATORS if not any(mark in item for item in items)), SEPARATORS[0])
    return f"{mark} ".join(items)


def exact_match(prediction: str, golds: Iterable[str]) -> bool:
    """Whether `prediction` is one of the accepted answers; an empty prediction is none, and neither is a list of several."""
    accepted, key = list(golds), answer_key(prediction)
    return bool(key[0]) and len(split_items(prediction, accepted)) <= 1 and any(key == answer_key(gold) for gold in accepted)


def sub_match(prediction: str, golds: Iterable[str]) -> bool:
    """Whether an accepted answer stands in `prediction` as whole words. A lenient figure of its own, never a reward."""
    words = f" {normalize(prediction)} "
    return any(f" {normalized} " in words for normalized in map(normalize, golds) if normalized)


def f1(prediction: str, golds: Iterable[str]) -> float:
    """Word-level F1 in [0, 1], the best over the accepted answers: 2 · shared words / (words of both), words normalised."""
    return max((_bag_f1(prediction, gold) for gold in golds), default=0.0)


@dataclass(frozen=True, slots=True)
class SetScores:
    """Precision, recall and F1 of a set of predicted answers, each in [0, 1], and whether the sets are equal."""

    precision: float
    recall: float
    f1: float
    exact: bool


def set_scores(predictions: Iterable[str], golds: Iterable[str | Sequence[str]]) -> SetScores:
    """Precision, recall and F1 of a set of answers; a right answer may be given by any of its aliases.

    A repeated prediction counts once, an empty one not at all, two aliases of one answer once. Nothing predicted has precision 0.
    Raises ValueError where `golds` holds no answer.
    """
    right = _aliases(golds)
    predicted = {right.get(key, key) for key in map(answer_key, predictions) if key[0]}
    shared, wanted = len(predicted & set(right.values())), len(set(right.values()))
    precision = shared / len(predicted) if predicted else 0.0
    return SetScores(precision, shared / wanted, 2 * shared / (len(predicted) + wanted), shared == wanted == len(predicted))


def _aliases(golds: Iterable[str | Sequence[str]]) -> dict[Key, Key]:
    """The key of every alias → the key of the answer's first name."""
    names: dict[Key, Key] = {}
    for gold in golds:
        keys = [key for key in map(answer_key, [gold] if isinstance(gold, str) else gold) if key[0]]
        for key in keys:
            names.setdefault(key, names.get(keys[0], keys[0]))
    if not names:
        raise ValueError("the set of right answers is empty")
    return names


def _figures(text: str) -> tuple[str, ...]:
    """The numbers of `text` as written but for thousands separators; hyphens, slashes and colons separate two numbers."""
    found: list[str] = []
    for match in _FIGURE.finditer(text):
        digits = _GROUPED.sub(lambda grouped: grouped[0].replace(",", ""), match["digits"])
        first, *others = re.split(r"[^\w.]+", digits)
        found += [(match["sign"] or "") + (match["point"] or "") + first, *others]
    return tuple(found)


def _bag_f1(prediction: str, gold: str) -> float:
    predicted, right = normalize(prediction).split(), normalize(gold).split()
    shared = (Counter(predicted) & Counter(right)).total()
    return 2 * shared / (len(predicted) + len(right)) if shared else 0.0


def _collapse(text: str) -> str:
    return " ".join(text.split())
