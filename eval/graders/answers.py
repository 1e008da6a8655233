"""Short answers compared as in SQuAD, except for differences that SQuAD's normalization wrongly removes.

Normalization in SQuAD's order: lower case, strip ASCII punctuation, drop the articles a, an and the, collapse whitespace (Rajpurkar et al.
2016, `evaluate-v1.1.py`; Search-R1's `qa_em.py` does the same). A text that this empties, such as "The The" or "!!!", is compared by its
collapsed lower case instead, so two emptied texts are not equal.

Stripping turns 3.5 into 35, -5 into 5, 9/11 into 911, 50% into 50, C++ into C, !Paris into Paris and Vitamin A into Vitamin. An exact match
therefore also requires the same numbers with their inner punctuation, the same leading and trailing signs, and the same free-standing
operators and letters ("x + 1" and "x - 1", "> 3", "Hepatitis A virus"). It compares folded text (`eval.graders.text`), so curly quotes,
dashes and decomposed accents do not matter, and never accepts what SQuAD rejects on folded text. `squad_match` is SQuAD's own rule, for
comparison with published figures.

Several answers in one text must be a list separated by `;` or `|`. A list does not answer a question with a single answer. If all answers
are requested, a list may also be JSON or Python, one item per line, or "red, blue and green". Text that occurs in an accepted answer never
separates.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eval.graders.text import fold, lower

SEPARATORS = ";|"
"""Separators of list items; the oracle writes the first."""

Key = tuple[str, tuple[str, ...]]
"""Key shared by equal answers: normalized text, then its numbers and its leading and trailing signs."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_FIGURE = re.compile(r"(?:(?<![\w)\].,])(?P<sign>[-<>]=?)[$€£]?)?(?P<point>(?<![\w.])\.)?(?P<digits>\d+(?:[^\w\s]+\d+)*)(?P<percent>\s?%)?")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)")
_OPENING = re.compile(r"(?<![^\s(\[{\"'])(?:[!~^?@<>=]+(?=\w)|[-#$%&+/\\]+(?=[^\W\d_])|\.(?=[^\W\d_]))")
"""A sign before a word that changes its meaning: a denial, approximation, bound, path or network name."""
_ALONE = re.compile(
    r"(?<= )(?:[+*/^=<>~]|[!<>=]=)(?= )|(?<=\d )-(?= )|(?<= )-(?= \d)|(?<=\b[a-z] )-(?= [a-z]\b)|^(?:[!~^<=]+(?= )|[->/]+(?= \d))"
)
"""An operator between blanks; at the start of a text only one that cannot be a bullet or quotation mark."""
_LETTERED = "vitamin|hepatitis|influenza|group|type|class|grade|plan|serie|series|section|appendix|exhibit|category|level|factor|schedule"
_CLOSING = re.compile(rf"(?<=\w)(?:[+#]+|-)(?=[\s,.;)\]]|$)|(?<=\w )a(?=\W*$)|\b(?:{_LETTERED}) a(?= \w)")
"""A sign after a word that changes its meaning. An "a" at the end, or after a word that letters follow ("Vitamin A"), is no article."""
_BULLET = re.compile(r"^(?:[-*•·◦‣]|\(?(?:\d{1,2}|[a-z])\)|\d{1,2}\.)\s+")
_LAST = re.compile(r"^(?:and|&)\s+", re.IGNORECASE)
_QUOTED = re.compile(r"'[^'\\]*'|\"[^\"\\]*\"")
_PYTHON_LIST = re.compile(rf"\[\s*(?:{_QUOTED.pattern})(?:\s*,\s*(?:{_QUOTED.pattern}))*\s*,?\s*\]")
_AND = re.compile(r" ?,? (?:and|&) ", re.IGNORECASE)
_COMMA = re.compile(r" ?, ")


def normalize(text: str) -> str:
    """Normalize `text` for comparison; empty only if `text` is blank."""
    lowered = text.lower()
    bare = _collapse(_ARTICLES.sub(" ", lowered.translate(_PUNCTUATION)))
    return bare or _collapse(lowered)


def answer_key(text: str) -> Key:
    """Return the key of `text`, which is equal for answers that count as the same."""
    folded = fold(text)
    lowered = lower(_collapse(folded))
    return normalize(lower(folded)), (*_figures(folded), *_OPENING.findall(lowered), *_ALONE.findall(lowered), *_CLOSING.findall(lowered))


def split_items(text: str, golds: Iterable[str] = ()) -> list[str]:
    """Split `text` into its non-empty list items. A separator that occurs in one of `golds` does not separate."""
    accepted = list(golds)
    separating = "".join(mark for mark in SEPARATORS if not any(mark in gold for gold in accepted))
    items = re.split(f"[{re.escape(separating)}]", text) if separating else [text]
    return [item.strip() for item in items if item.strip()]


def read_set(text: str, golds: Iterable[str] = ()) -> list[str]:
    """Parse the items of an answer that asks for all: a JSON list, one per line, `split_items`, or an enumeration with "and"."""
    accepted, text = list(golds), text.strip()
    if (listed := _written_list(text)) is not None:
        return listed
    if len(lines := [line.strip() for line in text.splitlines() if line.strip()]) > 1:
        known = {answer_key(gold) for gold in accepted}
        items = [line if answer_key(line) in known else _BULLET.sub("", fold(line)).rstrip(",;") for line in lines]
        return [*items[:-1], items[-1] if answer_key(items[-1]) in known else _LAST.sub("", items[-1])]
    items = split_items(fold(text), accepted)
    return _enumerated(items[0], accepted) if len(items) == 1 else items


def join_items(items: Sequence[str]) -> str:
    """Join items into one answer that `split_items` splits again, unless every separator occurs in an item."""
    mark = next((mark for mark in SEPARATORS if not any(mark in item for item in items)), SEPARATORS[0])
    return f"{mark} ".join(items)


def exact_match(prediction: str, golds: Iterable[str]) -> bool:
    """Return whether `prediction` is an accepted answer. An empty prediction or a list of several never is."""
    accepted, key = list(golds), answer_key(prediction)
    return bool(key[0]) and len(split_items(fold(prediction), accepted)) <= 1 and any(key == answer_key(gold) for gold in accepted)


def squad_match(prediction: str, golds: Iterable[str]) -> bool:
    """SQuAD's exact match: `prediction` and an accepted answer are equal after normalization, and not empty."""
    return bool(normalized := normalize(prediction)) and any(normalized == normalize(gold) for gold in golds)


def sub_match(prediction: str, golds: Iterable[str]) -> bool:
    """Return whether an accepted answer occurs in `prediction` as whole words. A lenient metric, never a reward."""
    words = f" {_words(prediction)} "
    return any(f" {wanted} " in words for gold in golds if (wanted := _words(gold)))


def f1(prediction: str, golds: Iterable[str]) -> float:
    """Word-level F1 in [0, 1], the best over the accepted answers: 2 · shared words / (words of both), words normalized."""
    return max((_bag_f1(prediction, gold) for gold in golds), default=0.0)


@dataclass(frozen=True, slots=True)
class SetScores:
    """Precision, recall and F1 of a set of predicted answers, each in [0, 1], and whether the sets are equal."""

    precision: float
    recall: float
    f1: float
    exact: bool


def set_scores(predictions: Iterable[str], golds: Iterable[str | Sequence[str]]) -> SetScores:
    """Precision, recall and F1 of a set of answers; any alias of a right answer counts.

    A repeated prediction counts once, an empty one not at all, two aliases of one answer once. Without predictions, precision is 0. Raises
    ValueError if `golds` holds no answer.
    """
    right = _aliases(golds)
    predicted = {right.get(key, key) for key in map(answer_key, predictions) if key[0]}
    shared, wanted = len(predicted & set(right.values())), len(set(right.values()))
    precision = shared / len(predicted) if predicted else 0.0
    return SetScores(precision, shared / wanted, 2 * shared / (len(predicted) + wanted), shared == wanted == len(predicted))


def _aliases(golds: Iterable[str | Sequence[str]]) -> dict[Key, Key]:
    """Map the key of every alias to the key of the answer's first name."""
    names: dict[Key, Key] = {}
    for gold in golds:
        keys = [key for key in map(answer_key, [gold] if isinstance(gold, str) else gold) if key[0]]
        for key in keys:
            names.setdefault(key, names.get(keys[0], keys[0]))
    if not names:
        raise ValueError("the set of right answers is empty")
    return names


def _figures(text: str) -> tuple[str, ...]:
    """The numbers of `text` as written, without thousands separators, with their signs, percent signs and inner punctuation."""
    found: list[str] = []
    for match in _FIGURE.finditer(text):
        digits = _GROUPED.sub(lambda grouped: grouped[0].replace(",", ""), match["digits"])
        found.append((match["sign"] or "") + (match["point"] or "") + digits + ("%" if match["percent"] else ""))
    return tuple(found)


def _written_list(text: str) -> list[str] | None:
    """The items of a JSON list of strings and numbers, or of a Python list of strings; None for anything else."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        return _python_texts(text)
    plain = all(isinstance(member, str | int | float) and not isinstance(member, bool) for member in members)
    return [str(member) for member in members] if plain else None


def _python_texts(text: str) -> list[str] | None:
    return [quoted[1:-1] for quoted in _QUOTED.findall(text)] if _PYTHON_LIST.fullmatch(text) else None


def _enumerated(text: str, golds: Sequence[str]) -> list[str]:
    """Split "A, B and C" into three items. Commas separate only in a text with an "and", and nothing that occurs in `golds` separates."""
    if any(_AND.search(gold) for gold in golds):
        return [text]
    items = _AND.split(_collapse(text))
    if len(items) == 1:
        return [text]
    return items if any("," in gold for gold in golds) else [part for item in items for part in _COMMA.split(item)]


def _bag_f1(prediction: str, gold: str) -> float:
    predicted, right = _words(prediction).split(), _words(gold).split()
    shared = (Counter(predicted) & Counter(right)).total()
    return 2 * shared / (len(predicted) + len(right)) if shared else 0.0


def _words(text: str) -> str:
    return normalize(lower(fold(text)))


def _collapse(text: str) -> str:
    return " ".join(text.split())
