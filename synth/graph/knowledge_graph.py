"""The knowledge graph: facts with the documents that state them, indexed for knowledge projections.

Names are interned and facts held in columns (`synth.graph.columns`), so that ten million facts fit where Python's own objects
would need ten times the memory. The methods here speak of entities and relations by name; `columns`, `entities` and
`relation_names` give what evaluates formulas the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from synth.graph.columns import FactColumns, Ids, arrange
from synth.graph.interned_texts import Prefix, Texts, intern
from warehouse.corpora.corpus import Corpus, Wording
from warehouse.records import Document, Fact

_TYPED = 1_000
"""Facts of a relation whose ends' types are looked at."""
_HELD = 500_000
"""Entities in all the images that are held at a time: some 30 MiB."""
Texty: TypeAlias = pa.Array | pa.ChunkedArray
"""A column of texts."""


class KnowledgeGraph:
    """Facts as edges from subject to object, labelled by their relation; equal triples are one edge."""

    def __init__(
        self,
        facts: Iterable[Fact],
        documents: Iterable[Document] = (),
        types: Mapping[str, str] | None = None,
        wordings: Mapping[str, Wording] | None = None,
    ) -> None:
        known = list(facts)
        self._fill(
            pa.array([fact.subject for fact in known], pa.large_string()),
            pa.array([fact.relation for fact in known], pa.large_string()),
            pa.array([fact.object for fact in known], pa.large_string()),
            pa.array([fact.documents for fact in known], pa.large_list(pa.large_string())),
            pa.array([fact.source for fact in known], pa.large_string()),
        )
        self._add_documents({document.id: document for document in documents}, types)
        self.wordings: Mapping[str, Wording] = wordings or {}
        """How its relations are spoken of."""

    @classmethod
    def of(cls, corpus: Corpus) -> KnowledgeGraph:
        """The graph of a corpus, its documents, types and wordings at hand."""
        return cls(corpus.facts, corpus.documents, corpus.types, corpus.wordings)

    @classmethod
    def from_columns(
        cls,
        subjects: Texty,
        relations: Texty,
        objects: Texty,
        documents: Texty | None = None,
        source: str = "",
        texts: Mapping[str, Document] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> KnowledgeGraph:
        """The graph of facts in Arrow columns of equal length.

        Args:
            documents: the ids of the documents that state each fact, a list or a single id a row; None where nothing states them.
            source: the source of all facts.
            texts: the documents by id.
            types: what kind of thing an entity is.
        """
        graph = cls.__new__(cls)
        graph._fill(subjects, relations, objects, documents, pa.array([source], pa.large_string()))
        graph._add_documents(texts or {}, types)
        graph.wordings = {}
        return graph

    def _fill(self, subjects: Texty, relations: Texty, objects: Texty, documents: Texty | None, sources: Texty) -> None:
        names, (subject, value) = intern(subjects, objects)
        relation_names, (relation,) = intern(relations)
        document_ids, stated = _stated(documents)
        source_names, (source,) = intern(sources)
        self.entities = Texts(names)
        """Every entity by its number; those that facts speak of come first, in the order of their first fact."""
        self.relation_names: tuple[str, ...] = tuple(relation_names.to_pylist())
        self._relation_numbers = {name: number for number, name in enumerate(self.relation_names)}
        self._document_ids = Texts(document_ids)
        self._sources: tuple[str, ...] = tuple(source_names.to_pylist())
        source = source if len(source) == len(subject) else np.zeros(len(subject), np.int32)
        self.columns: FactColumns = arrange(subject, relation, value, len(self.entities), len(self.relation_names), stated, source)
        self._images: dict[tuple[int, int], frozenset[int]] = {}
        self._held = 0
        self._directed: dict[int, bool] = {}
        self.subjects: Sequence[str] = Prefix(self.entities, len(self.columns.starts) - 1)
        """The entities that facts speak of, in the order of their first fact."""

    def _add_documents(self, documents: Mapping[str, Document], types: Mapping[str, str] | None) -> None:
        self.documents: Mapping[str, Document] = documents
        self.types: Mapping[str, str] = types or {}
        self._titles: dict[str, str | None] = {}
        for document in documents.values():
            title = document.title.casefold()
            self._titles[title] = None if title in self._titles else document.id

    @property
    def relations(self) -> list[str]:
        """The names of the relations, in the order of their first fact."""
        return list(self.relation_names)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the facts and names, without the documents' texts and the types."""
        return self.columns.nbytes + self.entities.nbytes + self._document_ids.nbytes

    def relation_number(self, relation: str) -> int | None:
        """The number of a relation; None where no fact has it."""
        return self._relation_numbers.get(relation)

    def about(self, entity: str) -> list[Fact]:
        """The facts whose subject is `entity`."""
        number = self.entities.number(entity)
        return [] if number is None else [self._fact(entity, place) for place in self.columns.places(number)]

    def objects(self, subject: str, relation: str) -> list[str]:
        """What `relation` leads to from `subject`."""
        entity, number = self._numbers(subject, relation)
        return self._named(self.columns.objects(entity, number)) if entity >= 0 and number >= 0 else []

    def values(self, relation: str) -> list[str]:
        """Everything that is the object of `relation` somewhere, in the order of its first fact."""
        number = self.relation_number(relation)
        return [] if number is None else self._named(self.value_numbers(number).tolist())

    def image(self, entity: int, relation: int) -> frozenset[int]:
        """What a relation joins with an entity, in numbers; the last ones asked for are held, for a few genres come again and again."""
        found = self._images.get((entity, relation))
        if found is None:
            found = frozenset(self.columns.adjacent(entity, relation))
            self._held += len(found) + 1
            if self._held > _HELD:
                self._images.clear()
                self._held = len(found) + 1
            self._images[entity, relation] = found
        return found

    def holds_image(self, entity: int, relation: int) -> bool:
        """Whether an image is at hand."""
        return (entity, relation) in self._images

    def value_numbers(self, relation: int) -> Ids:
        """The numbers of `values`."""
        found = self.columns.object[self.columns.with_relation(relation)]
        _, first = np.unique(found, return_index=True)
        return found[np.sort(first)]

    def subjects_of(self, relation: str, value: str) -> list[str]:
        """The entities that `relation` leads from to `value`."""
        entity, number = self._numbers(value, relation)
        return self._named(self.columns.subjects(entity, number)) if entity >= 0 and number >= 0 else []

    def adjacent(self, relation: str, entity: str) -> list[str]:
        """The undirected image of one entity: its objects under `relation`, then its subjects; an entity can stand in both."""
        return self.objects(entity, relation) + self.subjects_of(relation, entity)

    def project(self, relation: str, entities: Iterable[str]) -> set[str]:
        """The knowledge projection R(V) = { u | some v in V with (u, v) in R or (v, u) in R } (WebShaper)."""
        return {other for entity in entities for other in self.adjacent(relation, entity)}

    def endpoints(self, relation: str) -> set[str]:
        """Everything that takes part in `relation`: its projection of the whole universe."""
        number = self.relation_number(relation)
        return set() if number is None else set(self._named(self.columns.endpoints(number)))

    def is_directed(self, relation: str) -> bool:
        """Whether to exchange the ends of a relation says something else: they are things of one kind, and not all facts hold both ways."""
        number = self.relation_number(relation)
        if number is None:
            return False
        if number not in self._directed:
            self._directed[number] = self._has_direction(number)
        return self._directed[number]

    def _has_direction(self, number: int) -> bool:
        places = self.columns.with_relation(number)
        subjects, objects = self.columns.subject[places].astype(np.int64), self.columns.object[places].astype(np.int64)
        if not (np.intersect1d(subjects, objects).size or self._types_of(subjects) & self._types_of(objects)):
            return False
        size = len(self.entities)
        return not np.isin(objects * size + subjects, subjects * size + objects).all()

    def _types_of(self, entities: NDArray[np.int64]) -> set[str]:
        """The types of the first of some entities, as far as they are known."""
        return {self.types[name] for name in self._named(entities[:_TYPED].tolist()) if name in self.types} if self.types else set()

    def stating(self, subject: str, relation: str, value: str) -> tuple[str, ...]:
        """The ids of the documents that state a fact; none where the graph lacks the fact."""
        entity, number = self._numbers(subject, relation)
        other = self.entities.number(value)
        if entity < 0 or number < 0 or other is None:
            return ()
        place = self.columns.place(entity, number, other)
        return () if place is None else self._stating(place)

    def stating_either_way(self, left: str, relation: str, right: str) -> tuple[str, ...]:
        """The ids of the documents that state a fact between two entities, in whichever direction."""
        entity, number = self._numbers(left, relation)
        other = self.entities.number(right)
        if entity < 0 or number < 0 or other is None:
            return ()
        places = self.columns.place(entity, number, other), self.columns.place(other, number, entity)
        return tuple(document for place in places if place is not None for document in self._stating(place))

    def titled(self, title: str) -> Document | None:
        """The only document of that title, whatever its case; None where there is none or more than one."""
        document = self._titles.get(title.casefold())
        return None if document is None else self.documents[document]

    def facts(self) -> Iterator[Fact]:
        """Every fact once."""
        for number, entity in enumerate(self.subjects):
            for place in self.columns.places(number):
                yield self._fact(entity, place)

    def _numbers(self, entity: str, relation: str) -> tuple[int, int]:
        """The numbers of an entity and a relation, -1 for what is not known."""
        number, relation_number = self.entities.number(entity), self.relation_number(relation)
        return -1 if number is None else number, -1 if relation_number is None else relation_number

    def _named(self, numbers: Iterable[int]) -> list[str]:
        return [self.entities[number] for number in numbers]

    def _fact(self, subject: str, place: int) -> Fact:
        relation = self.relation_names[self.columns.relation.item(place)]
        value = self.entities[self.columns.object.item(place)]
        return Fact(subject, relation, value, self._stating(place), self._sources[self.columns.source.item(place)])

    def _stating(self, place: int) -> tuple[str, ...]:
        first, last = self.columns.document_starts.item(place), self.columns.document_starts.item(place + 1)
        return tuple(self._document_ids[number] for number in self.columns.documents[first:last].tolist())


def _stated(documents: Texty | None) -> tuple[pa.Array, tuple[Ids, np.ndarray]]:
    """The ids of the documents that state facts; these as numbers, flat, and for each the number of its fact."""
    if documents is None:
        return pa.array([], pa.large_string()), (np.zeros(0, np.int32), np.zeros(0, np.int64))
    column = documents.combine_chunks() if isinstance(documents, pa.ChunkedArray) else documents
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        fact = pc.list_parent_indices(column).to_numpy()
        column = column.flatten()
    else:
        present = column.is_valid()
        fact = np.flatnonzero(present.to_numpy(zero_copy_only=False))
        column = column.drop_null()
    ids, (numbers,) = intern(column)
    return ids, (numbers, fact)
