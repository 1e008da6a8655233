"""A corpus: the facts of a knowledge graph, the documents that state them, and what had to be left out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from warehouse.records import Document, Fact, Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Facts and documents of one world.

    Entities are named by the text a reader would use for them, and one name means one entity. `types` says what kind of thing
    an entity is (`film`, `person`, ...), where that is known. `failures` are the rows and strings that were left out.
    """

    facts: tuple[Fact, ...] = ()
    documents: tuple[Document, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()

    def joined(self, other: Corpus) -> Corpus:
        """Both corpora as one; a type that only one of them knows is kept."""
        return Corpus(
            facts=tuple(dict.fromkeys(self.facts + other.facts)),
            documents=tuple(dict.fromkeys(self.documents + other.documents)),
            types={**other.types, **self.types},
            failures=self.failures + other.failures,
        )
