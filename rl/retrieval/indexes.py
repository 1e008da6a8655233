"""The two indexes of a home: one for training tasks and one for suites. `Document.split` says which index finds a document; a document that
held-out questions ask about is found by no search of training.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rl.retrieval.config import SearchConfig
from rl.retrieval.imperfect import ImperfectIndex
from rl.retrieval.search import Index, SearchIndex
from rl.retrieval.vectors import build_vectors
from warehouse.records import Document, DocumentSplit, Task


@dataclass(frozen=True, slots=True)
class Indexes:
    """The index for training tasks and the one for suites; None without documents."""

    train: Index | None = None
    held_out: Index | None = None

    def of(self, task: Task) -> Index | None:
        """The index that `task` searches."""
        return self.train if task.is_trained_on else self.held_out

    @property
    def any(self) -> Index | None:
        """Either index, to probe an environment with."""
        return self.held_out if self.train is None else self.train


def build_index(documents: Iterable[Document], config: SearchConfig) -> Index:
    """An index over `documents`, lexical or by vectors, imperfect if configured.

    Raises:
        RequestError: no such encoder, or its library is not installed.
    """
    return as_imperfect(SearchIndex(documents) if config.by == "words" else build_vectors(documents, config), config)


def as_imperfect(index: Index, config: SearchConfig) -> Index:
    return index if config.imperfect is None else ImperfectIndex(index, config.imperfect)


def build_indexes(documents: Iterable[Document], config: SearchConfig | None = None) -> Indexes:
    """Both indexes over `documents`; the same object if all documents belong to both. Raises as `build_index` does."""
    config, everything = config or SearchConfig(), list(documents)
    parts = [[d for d in everything if d.split is not other] for other in (DocumentSplit.HELD_OUT, DocumentSplit.TRAIN)]
    if config.by == "vectors":
        vectors = build_vectors(everything, config)
        return Indexes(*(as_imperfect(vectors.among(part), config) if part else None for part in parts))
    train, held_out = parts
    first = build_index(train, config) if train else None
    return Indexes(first, first if train == held_out else build_index(held_out, config) if held_out else None)
