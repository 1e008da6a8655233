"""Lexical search over a corpus: documents with the queried title first, then BM25 over titles and texts.

The index is a picklable value of numpy arrays and documents, shareable through Ray's object store. Ties are ordered by document id.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from warehouse.records import Document

if TYPE_CHECKING:
    import bm25s

# Use a filter, not a level: the library sets its level to DEBUG on import, which happens later, and in workers too.
logging.getLogger("bm25s").addFilter(lambda record: record.levelno >= logging.WARNING)

_WORD = re.compile(r"\w+")


class Miss(StrEnum):
    EMPTY_QUERY = "empty query"
    NO_HIT = "no hit"
    NO_FURTHER = "no further hit"


@dataclass(frozen=True, slots=True)
class Hits:
    """Documents found, best first; `miss` says why there are none."""

    documents: tuple[Document, ...]
    miss: Miss | None = None


class Index(Protocol):
    """A document index; picklable."""

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents, ordered by id."""
        ...

    @property
    def paged(self) -> bool:
        """Whether `QUERY page 2` asks for the second page."""
        ...

    def find(self, query: str, k: int = 1) -> Hits:
        """The best `k` documents for `query`, or why there are none. Never raises."""
        ...

    def scored(self, query: str, k: int = 1) -> list[tuple[Document, float]]:
        """The same documents in the same order, with scores."""
        ...


class SearchIndex:
    """Lexical index: BM25, Lucene variant, k1 = 1.5, b = 0.75 (bm25s; Lù 2024, arXiv 2407.03618).

    Words are lower-case runs of letters and digits, without stop words or stemming.
    """

    paged = False

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents: tuple[Document, ...] = by_id(documents)
        self._by_title: dict[str, list[int]] = {}
        for position, document in enumerate(self.documents):
            self._by_title.setdefault(_normalize(document.title), []).append(position)
        self._bm25 = _build(self.documents)
        self._scores = None if self._bm25 is None else WordScores(self._bm25, len(self.documents))

    def __len__(self) -> int:
        return len(self.documents)

    def search(self, query: str, k: int = 1) -> list[Document]:
        return list(self.find(query, k).documents)

    def find(self, query: str, k: int = 1) -> Hits:
        if not words_of(query) and _normalize(query) not in self._by_title:
            return Hits((), Miss.EMPTY_QUERY)
        found = self._found(query, k)
        return Hits(tuple(self.documents[position] for position in found), None if found else Miss.NO_HIT)

    def scored(self, query: str, k: int = 1) -> list[tuple[Document, float]]:
        """Documents of `find` with BM25 scores; a title match may score lower than later documents."""
        known = self._known(words_of(query))
        scores = np.zeros(len(self), np.float32) if self._scores is None else self._scores.of(known)
        return [(self.documents[position], float(scores[position])) for position in self._found(query, k)]

    def _found(self, query: str, k: int) -> list[int]:
        """Positions of the best `k` documents: title matches, then by score."""
        titled = self._by_title.get(_normalize(query), [])[:k]
        return titled if len(titled) == k else titled + self._ranked(words_of(query), k, without=frozenset(titled))

    def _ranked(self, words: list[str], k: int, without: frozenset[int]) -> list[int]:
        """Positions of the `k - len(without)` highest positive scores, ties by position (and so by id)."""
        known = self._known(words)
        if self._scores is None or not known:
            return []
        if k == 1:
            return [self._scores.first(known)]
        scores = self._scores.of(known)
        scores[list(without)] = 0.0
        return list(_best_first(scores, k - len(without)))

    def _known(self, words: list[str]) -> list[int]:
        """Tokens of the query's words that occur in some document."""
        return [] if self._bm25 is None else self._bm25.get_tokens_ids(words)


class WordScores:
    """BM25 scores of all documents, and fast retrieval of the single best one.

    Scores equal those of `BM25.get_scores_from_ids`, computed without its unbuffered addition; frequent words are added as dense columns.
    To find the best document, documents with the rarest words are scored first until no other document can win (MaxScore; Turtle and Flood
    1995); if that takes too long, all are scored.
    """

    _COMMON = 16
    """Words in more than 1/16 of the documents get a dense column."""
    _WORTH = 128
    """Budget of the search for the best document: one scored word per this many documents."""

    def __init__(self, index: bm25s.BM25, count: int) -> None:
        self._count = count
        self._starts, self._documents, self._values = (index.scores[name] for name in ("indptr", "indices", "data"))
        sizes = np.diff(self._starts)
        self._highest = np.zeros(len(sizes), np.float32)
        held = np.flatnonzero(sizes)
        self._highest[held] = np.maximum.reduceat(self._values, self._starts[held]) if len(held) else 0.0
        self._columns = {int(token): self._column(int(token)) for token in np.flatnonzero(sizes > count / self._COMMON)}

    def of(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Scores of all documents, shape (documents,)."""
        scores = np.zeros(self._count, np.float32)
        for token in tokens:
            column = self._columns.get(token)
            if column is not None:
                scores += column
            else:
                documents, values = self._postings(token)
                scores[documents] += values
        return scores

    def first(self, tokens: Sequence[int]) -> int:
        """Position of the best document for at least one known word; the first on ties."""
        found = self._pruned(tokens)
        return int(self.of(tokens).argmax()) if found is None else found

    def _column(self, token: int) -> NDArray[np.float32]:
        column = np.zeros(self._count, np.float32)
        documents, values = self._postings(token)
        column[documents] = values
        return column

    def _postings(self, token: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        part = slice(self._starts.item(token), self._starts.item(token + 1))
        return self._documents[part], self._values[part]

    def _pruned(self, tokens: Sequence[int]) -> int | None:
        """Position of the best document if the rarest words decide it, else None."""
        highest = {token: self._highest.item(token) * tokens.count(token) for token in tokens}
        rest, left = sum(highest.values()), self._count // self._WORTH
        best, first = 0.0, -1
        for token in sorted(highest, key=lambda token: (self._starts.item(token + 1) - self._starts.item(token), token)):
            documents, _ = self._postings(token)
            left -= len(documents) * len(tokens)
            if left < 0:
                return None
            scores = self._of_some(documents, tokens)
            place = int(scores.argmax())
            score, document = scores.item(place), documents.item(place)
            if score > best or (score == best and document < first):
                best, first = score, document
            rest -= highest[token]
            if best > rest * 1.001 + 1e-3:  # far beyond the rounding errors of the sums
                return first
        return None

    def _of_some(self, documents: NDArray[np.int32], tokens: Sequence[int]) -> NDArray[np.float32]:
        """Scores of some documents, with the same sums in the same order as `of`."""
        scores = np.zeros(len(documents), np.float32)
        for token in tokens:
            column = self._columns.get(token)
            if column is not None:
                scores += column[documents]
                continue
            held, values = self._postings(token)
            places = np.minimum(held.searchsorted(documents), len(held) - 1)
            scores += np.where(held[places] == documents, values[places], np.float32(0.0))
        return scores


def _best_first(scores: NDArray[np.float32], count: int) -> Iterator[int]:
    """Yield positions of the `count` highest positive scores, first on ties; sets them to 0.

    For short pages, one argmax per rank takes a twentieth of the time of partitioning and sorting.
    """
    for _ in range(count):
        place = int(scores.argmax())
        if scores[place] <= 0.0:
            return
        yield place
        scores[place] = 0.0


def by_id(documents: Iterable[Document]) -> tuple[Document, ...]:
    """Documents in tie-breaking order."""
    return tuple(sorted(documents, key=lambda document: document.id))


def passage(document: Document) -> str:
    """Title and text as shown in observations; the title is not repeated if the text begins with it."""
    if document.text.startswith(document.title):
        return document.text
    return f"{document.title}\n{document.text}"


def passages(documents: Sequence[Document]) -> str:
    return "\n".join(passage(document) for document in documents)


def shown(hits: Hits) -> str:
    """Observation of a search: passages, or a sentence that says why there are none."""
    return passages(hits.documents) if hits.miss is None else f"Nothing was found: {hits.miss.value}."


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _build(documents: Sequence[Document]) -> bm25s.BM25 | None:
    """The BM25 index, or None if no document contains a word."""
    import bm25s  # imports numba, which is slow and not needed without search

    texts = [words_of(f"{document.title} {document.text}") for document in documents]
    if not any(texts):
        return None
    index = bm25s.BM25(method="lucene")
    index.index(texts, show_progress=False)
    return index


def _normalize(title: str) -> str:
    return " ".join(title.casefold().split())
