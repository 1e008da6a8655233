"""Search over a corpus: the document of that title first, then BM25 over titles and texts.

The index is one picklable value of numpy arrays and documents, so that Ray's object store can share it between workers. Equal
scores are ordered by document id: the same query over the same documents always gives the same answer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import bm25s
import numpy as np

from warehouse.records import Document

logging.getLogger("bm25s").setLevel(logging.WARNING)

_WORD = re.compile(r"\w+")


class Miss(StrEnum):
    """Why a search found nothing."""

    EMPTY_QUERY = "empty query"
    NO_HIT = "no hit"


@dataclass(frozen=True, slots=True)
class Hits:
    """What a search found, best first; `miss` says why where there is nothing."""

    documents: tuple[Document, ...]
    miss: Miss | None = None


class SearchIndex:
    """An index over documents.

    BM25 is the Lucene variant with k1 = 1.5 and b = 0.75 (bm25s; Lù 2024, arXiv 2407.03618), words are runs of letters and
    digits in lower case, without stop words or stemming.
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents: tuple[Document, ...] = tuple(sorted(documents, key=lambda document: document.id))
        self._by_title: dict[str, list[int]] = {}
        for position, document in enumerate(self.documents):
            self._by_title.setdefault(_normalize(document.title), []).append(position)
        self._bm25 = _build(self.documents)

    def __len__(self) -> int:
        return len(self.documents)

    def search(self, query: str, k: int = 1) -> list[Document]:
        """The best `k` documents for `query`, best first; an empty list where there is none."""
        return list(self.find(query, k).documents)

    def find(self, query: str, k: int = 1) -> Hits:
        """The best `k` documents for `query`, or why there is none. Never raises for what a policy may write."""
        words = _words(query)
        titled = self._by_title.get(_normalize(query), [])
        if not words and not titled:
            return Hits((), Miss.EMPTY_QUERY)
        found = titled[:k]
        if len(found) < k:
            found = found + self._ranked(words, k, without=frozenset(found))
        return Hits(tuple(self.documents[position] for position in found), None if found else Miss.NO_HIT)

    def _ranked(self, words: list[str], k: int, without: frozenset[int]) -> list[int]:
        """Positions of the `k - len(without)` documents with the highest positive scores, ties by position (and so by id)."""
        if self._bm25 is None:
            return []
        known = self._bm25.get_tokens_ids(words)
        if not known:
            return []
        scores = self._bm25.get_scores_from_ids(known)
        scores[list(without)] = 0.0
        positive = np.flatnonzero(scores > 0.0)
        wanted = k - len(without)
        if len(positive) > wanted:
            threshold = np.partition(scores[positive], -wanted)[-wanted]
            positive = positive[scores[positive] >= threshold]
        order = np.argsort(-scores[positive], kind="stable")
        return [int(position) for position in positive[order[:wanted]]]


def passage(document: Document) -> str:
    """Title and text of a document as an observation shows them; a text that begins with its title is not given it twice."""
    if document.text.startswith(document.title):
        return document.text
    return f"{document.title}\n{document.text}"


def passages(documents: Sequence[Document]) -> str:
    """Several documents as one observation."""
    return "\n".join(passage(document) for document in documents)


def _build(documents: Sequence[Document]) -> bm25s.BM25 | None:
    """The BM25 index, or None where no document holds a word."""
    texts = [_words(f"{document.title} {document.text}") for document in documents]
    if not any(texts):
        return None
    index = bm25s.BM25(method="lucene")
    index.index(texts, show_progress=False)
    return index


def _normalize(title: str) -> str:
    return " ".join(title.casefold().split())


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
