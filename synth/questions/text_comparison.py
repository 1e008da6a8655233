"""Text comparison: mentions of names, and near-duplicates.

Mentions are whole words, ignoring case, punctuation and accents. Near-duplicate candidates come from MinHash (Broder 1997) and are decided
by the exact Jaccard index of their shingles.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import Match, SequenceMatcher
from typing import TYPE_CHECKING

from eval.graders.answers import answer_key

if TYPE_CHECKING:
    from datasketch import MinHash, MinHashLSH

NameKey = tuple[str, tuple[str, ...]]

_WORD = re.compile(r"\w+")
_WITHOUT_BLANKS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff"  # Thai and Lao, Burmese, Khmer, kana
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_LETTER_OR_WORD = re.compile(rf"(?=\w)[{_WITHOUT_BLANKS}]|[^\W{_WITHOUT_BLANKS}]+")
_QUALIFIER = re.compile(r"\s*\([^()]*\)\s*$")
_ELLIPSIS = re.compile(r"\s*(?:\.\.\.+|…|\[[.…]+\])\s*")
_SHORT_QUOTE, _WORDS_PER_ERROR = 5, 6
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def plain(text: str) -> str:
    """Words of `text` in lower case without accents, joined by spaces."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return " ".join(_WORD.findall("".join(letter for letter in decomposed if not unicodedata.combining(letter))))


def name_key(text: str) -> NameKey:
    """Key shared by spellings of a name: its plain words, and the figures and signs that the grader distinguishes, as in C++."""
    return plain(text), answer_key(text)[1]


def unqualified(title: str) -> str:
    """Title without its qualifier in brackets: "Blue River (film)" becomes "Blue River"."""
    return _QUALIFIER.sub("", title)


def mentions(text: str, name: str) -> int:
    """Number of occurrences of `name` in `text` as whole words."""
    return _spaced(text).count(_within(name)) if plain(name) else 0


def without(text: str, names: Iterable[str]) -> str:
    """Plain words of `text` with all `names` replaced by a bar, longest first."""
    left = _spaced(text)
    for name in sorted(filter(plain, names), key=lambda name: len(plain(name)), reverse=True):
        left = left.replace(_within(name), " | ")
    return left


def locate(text: str, quote: str) -> str | None:
    """Span of `text` that `quote` copies, ignoring case and punctuation, with ellipses and a few wrong words allowed; None if not found.

    An inexact quotation needs at least five words. Its words must match in order, except one in six, within a span of at most twice its
    length.
    """
    places = [(word.start(), word.end()) for word in _WORD.finditer(text)]
    words = [plain(text[start:end]) for start, end in places]
    pieces = [plain(piece).split() for piece in _ELLIPSIS.split(quote)]
    wanted = [word for piece in pieces for word in piece]
    if not wanted:
        return None
    start = _found(words, wanted) if len(list(filter(None, pieces))) == 1 else None
    if start is not None:
        return text[places[start][0] : places[start + len(wanted) - 1][1]]
    if len(wanted) < _SHORT_QUOTE:
        return None
    matches = [block for block in SequenceMatcher(None, words, wanted, autojunk=False).get_matching_blocks() if block.size]
    blocks = _densest(matches, 2 * len(wanted))
    if sum(block.size for block in blocks) < len(wanted) - len(wanted) // _WORDS_PER_ERROR:
        return None
    return text[places[blocks[0].a][0] : places[blocks[-1].a + blocks[-1].size - 1][1]]


def _found(words: Sequence[str], wanted: Sequence[str]) -> int | None:
    size = len(wanted)
    return next(
        (start for start in range(len(words) - size + 1) if words[start] == wanted[0] and words[start : start + size] == wanted), None
    )


def _densest(blocks: Sequence[Match], longest: int) -> Sequence[Match]:
    """Consecutive blocks within `longest` words that match the most words."""
    best: Sequence[Match] = []
    for first in range(len(blocks)):
        near = [block for block in blocks[first:] if block.a + block.size - blocks[first].a <= longest]
        if sum(block.size for block in near) > sum(block.size for block in best):
            best = near
    return best


def share_a_stem(words: Iterable[str], others: Iterable[str]) -> bool:
    """Whether any word of one list shares its stem with one of the other: `directed` and `director`, `released` and `release`."""
    stems = {_stem(word) for word in words} - {""}
    return any(_stem(word) in stems for word in others)


def _stem(word: str) -> str:
    return word[:4] if len(word) >= 4 else ""


def _spaced(text: str) -> str:
    """Two spaces around each word, so that adjacent mentions share none."""
    return f"  {plain(text).replace(' ', '  ')}  "


def _within(name: str) -> str:
    return f" {plain(name).replace(' ', '  ')} "


def numbers(text: str) -> set[str]:
    """Numbers in `text`, without separators."""
    return {re.sub(r"\D", "", number) for number in _NUMBER.findall(text)}


PERMUTATIONS = 128
_LSH_MARGIN = 0.1
"""Margin below the threshold for candidates, to allow for estimation error."""
_LSH_WEIGHTS = (0.05, 0.95)
"""Weights of false and missed candidates: an exact comparison versus a contaminated example."""

Shingles = frozenset[str]


def words_of(text: str) -> list[str]:
    """Words of a text; single letters in scripts without spaces."""
    return _LETTER_OR_WORD.findall(unicodedata.normalize("NFKC", text.casefold()))


def shingles_of(text: str, width: int = 3) -> Shingles:
    """Runs of `width` words; all words as one run if there are fewer."""
    words = words_of(text)
    return frozenset(" ".join(words[start : start + width]) for start in range(max(1, len(words) - width + 1)))


def jaccard(one: Shingles, other: Shingles) -> float:
    """|A ∩ B| / |A ∪ B|; 1 for two empty sets."""
    return len(one & other) / len(one | other) if one or other else 1.0


@dataclass(slots=True)
class NearDuplicates:
    """Texts by id; finds those whose Jaccard index with a text is at least `threshold`."""

    threshold: float = 0.8
    width: int = 3
    _shingles: dict[str, Shingles] = field(default_factory=dict)
    _candidates: MinHashLSH = field(init=False)

    def __post_init__(self) -> None:
        from datasketch import MinHashLSH  # this import takes a quarter of a command's start-up time

        self._candidates = MinHashLSH(max(0.1, self.threshold - _LSH_MARGIN), PERMUTATIONS, _LSH_WEIGHTS)

    def add(self, identity: str, text: str) -> None:
        shingles = shingles_of(text, self.width)
        self._shingles[identity] = shingles
        self._candidates.insert(identity, _signature(shingles))

    def matches(self, text: str) -> list[tuple[str, float]]:
        """Near-duplicates of `text` as (id, Jaccard index), nearest first."""
        if not self._shingles:
            return []
        shingles = shingles_of(text, self.width)
        found = [(name, jaccard(shingles, self._shingles[name])) for name in self._candidates.query(_signature(shingles))]
        return sorted(((name, index) for name, index in found if index >= self.threshold), key=lambda match: (-match[1], match[0]))


def near_duplicates(texts: Iterable[tuple[str, str]], threshold: float = 0.8, width: int = 3) -> Iterator[tuple[str, str, float]]:
    """For each (id, text) nearly equal to an earlier kept one: its id, the earlier id, and their Jaccard index."""
    known = NearDuplicates(threshold, width)
    for identity, text in texts:
        nearest: Sequence[tuple[str, float]] = known.matches(text)[:1]
        if nearest:
            yield identity, *nearest[0]
        else:
            known.add(identity, text)


def _signature(shingles: Shingles) -> MinHash:
    from datasketch import MinHash

    signature = MinHash(num_perm=PERMUTATIONS, seed=1)
    signature.update_batch([shingle.encode() for shingle in sorted(shingles)])
    return signature
