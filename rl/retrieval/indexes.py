"""The two indexes of a home: what searches find while a policy is trained, and what they find on a suite.

A document that a suite's questions are asked of is found by no search of training: neither by rollouts nor where training text is made. On
a suite, documents of both sorts may be found, or those of a world of its own: `Document.split` says so.
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
    """The index that tasks search which are trained on, and the one of suites; None where there is no document for them."""

    train: Index | None = None
    held_out: Index | None = None

    def of(self, task: Task) -> Index | None:
        """The index that `task` searches."""
        return self.train if task.is_trained_on else self.held_out

    @property
    def any(self) -> Index | None:
        """One that is there, to try an environment with."""
        return self.held_out if self.train is None else self.train


def build_index(documents: Iterable[Document], config: SearchConfig) -> Index:
    """An index over `documents`, by words or by vectors, as imperfect as the configuration says.

    Raises:
        RequestError: where there is no such encoder, or the library that runs it is not installed.
    """
    return as_imperfect(SearchIndex(documents) if config.by == "words" else build_vectors(documents, config), config)


def as_imperfect(index: Index, config: SearchConfig) -> Index:
    """The index as rollouts search it: itself, unless the configuration says otherwise."""
    return index if config.imperfect is None else ImperfectIndex(index, config.imperfect)


def build_indexes(documents: Iterable[Document], config: SearchConfig | None = None) -> Indexes:
    """The indexes over `documents`; one and the same where all documents are for both. Raises RequestError as `build_index` does."""
    config, everything = config or SearchConfig(), list(documents)
    parts = [[d for d in everything if d.split is not other] for other in (DocumentSplit.HELD_OUT, DocumentSplit.TRAIN)]
    if config.by == "vectors":
        vectors = build_vectors(everything, config)
        return Indexes(*(as_imperfect(vectors.among(part), config) if part else None for part in parts))
    train, held_out = parts
    first = build_index(train, config) if train else None
    return Indexes(first, first if train == held_out else build_index(held_out, config) if held_out else None)
