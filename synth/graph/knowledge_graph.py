"""Knowledge graph: facts with the documents that state them, indexed for knowledge projections, and its topology.

Methods take names of entities and relations; formula evaluation uses numbers from `columns`, `entities` and `relation_names`. Connected
components ignore edge direction, as projections do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from synth.graph.columns import FactColumns, Ids, Prefix, Texts, arrange, intern
from warehouse.corpora.corpus import Corpus, Wording
from warehouse.records import Document, Fact

if TYPE_CHECKING:
    import networkx

_TYPED = 1_000
"""Maximum facts per relation whose entity types are inspected."""
_HELD = 500_000
"""Maximum entities in cached images: about 30 MiB."""
Texty: TypeAlias = pa.Array | pa.ChunkedArray


class KnowledgeGraph:
    """Facts as edges from subject to object, labelled by relation; equal triples are one edge."""

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

    @classmethod
    def of(cls, corpus: Corpus) -> KnowledgeGraph:
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
        """Build a graph from Arrow columns of equal length.

        Args:
            documents: ids of the documents that state each fact, a list or one id per row; None if no document states any.
            source: source of all facts.
            texts: documents by id.
            types: type of each entity.
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
        """Entities by number; subjects come first, in order of their first fact."""
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
        """Subjects of facts, in order of their first fact."""

    def _add_documents(self, documents: Mapping[str, Document], types: Mapping[str, str] | None) -> None:
        self.documents: Mapping[str, Document] = documents
        self.types: Mapping[str, str] = types or {}
        self._titles: dict[str, str | None] = {}
        for document in documents.values():
            title = document.title.casefold()
            self._titles[title] = None if title in self._titles else document.id

    @property
    def relations(self) -> list[str]:
        return list(self.relation_names)

    @property
    def nbytes(self) -> int:
        """Bytes of facts and names, without document texts and types."""
        return self.columns.nbytes + self.entities.nbytes + self._document_ids.nbytes

    def relation_number(self, relation: str) -> int | None:
        return self._relation_numbers.get(relation)

    def about(self, entity: str) -> list[Fact]:
        number = self.entities.number(entity)
        return [] if number is None else [self._fact(entity, place) for place in self.columns.places(number)]

    def objects(self, subject: str, relation: str) -> list[str]:
        entity, number = self._numbers(subject, relation)
        return self._named(self.columns.objects(entity, number)) if entity >= 0 and number >= 0 else []

    def values(self, relation: str) -> list[str]:
        """All objects of `relation`, in order of their first fact."""
        number = self.relation_number(relation)
        return [] if number is None else self._named(self.value_numbers(number).tolist())

    def image(self, entity: int, relation: int) -> frozenset[int]:
        """Projection of one entity, as numbers; cached, since few entities (such as genres) recur."""
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
        return (entity, relation) in self._images

    def value_numbers(self, relation: int) -> Ids:
        found = self.columns.object[self.columns.with_relation(relation)]
        _, first = np.unique(found, return_index=True)
        return found[np.sort(first)]

    def subjects_of(self, relation: str, value: str) -> list[str]:
        entity, number = self._numbers(value, relation)
        return self._named(self.columns.subjects(entity, number)) if entity >= 0 and number >= 0 else []

    def adjacent(self, relation: str, entity: str) -> list[str]:
        """Undirected image of one entity: objects under `relation`, then subjects, possibly repeated."""
        return self.objects(entity, relation) + self.subjects_of(relation, entity)

    def project(self, relation: str, entities: Iterable[str]) -> set[str]:
        """Knowledge projection R(V) = { u | some v in V with (u, v) in R or (v, u) in R } (WebShaper)."""
        return {other for entity in entities for other in self.adjacent(relation, entity)}

    def is_directed(self, relation: str) -> bool:
        """Whether swapping the ends of `relation` changes its meaning: the ends share a type, and not all facts hold both ways."""
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
        return {self.types[name] for name in self._named(entities[:_TYPED].tolist()) if name in self.types} if self.types else set()

    def stating(self, subject: str, relation: str, value: str) -> tuple[str, ...]:
        entity, number = self._numbers(subject, relation)
        other = self.entities.number(value)
        if entity < 0 or number < 0 or other is None:
            return ()
        place = self.columns.place(entity, number, other)
        return () if place is None else self._stating(place)

    def stating_either_way(self, left: str, relation: str, right: str) -> tuple[str, ...]:
        """Ids of the documents that state a fact between two entities, in either direction."""
        entity, number = self._numbers(left, relation)
        other = self.entities.number(right)
        if entity < 0 or number < 0 or other is None:
            return ()
        places = self.columns.place(entity, number, other), self.columns.place(other, number, entity)
        return tuple(document for place in places if place is not None for document in self._stating(place))

    def titled(self, title: str) -> Document | None:
        """The document with this title, ignoring case; None if there is none or several."""
        document = self._titles.get(title.casefold())
        return None if document is None else self.documents[document]

    def _numbers(self, entity: str, relation: str) -> tuple[int, int]:
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


MOST_FACTS = 2_000_000
"""Maximum facts of an analysed graph: networkx takes about 460 bytes per fact."""
HUBS = 10
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Hub:
    """An entity with its number of facts as subject and as object."""

    entity: str
    about: int
    object_of: int

    @property
    def degree(self) -> int:
        return self.about + self.object_of


@dataclass(frozen=True, slots=True)
class Topology:
    """Statistics of a graph. `components`: sizes in entities, largest first; `degrees`: by percentile."""

    entities: int
    facts: int
    stated: int
    """Facts that a document states."""
    relations: tuple[tuple[str, int], ...]
    """Relations and their fact counts, most frequent first."""
    components: tuple[int, ...]
    mean_degree: float
    degrees: dict[int, int]
    hubs: tuple[Hub, ...]
    dead_ends: int

    @property
    def largest_share(self) -> float:
        return self.components[0] / self.entities if self.entities else 0.0


def network_of(graph: KnowledgeGraph) -> networkx.MultiDiGraph:
    """The graph in networkx, by entity number; one edge per fact."""
    from networkx import MultiDiGraph

    network, columns = MultiDiGraph(), graph.columns
    network.add_nodes_from(range(len(columns.object_starts) - 1))
    network.add_edges_from(zip(columns.subject.tolist(), columns.object.tolist(), columns.relation.tolist(), strict=True))
    return network


def describe(graph: KnowledgeGraph) -> Topology:
    """Topology of `graph`; all zero without facts. A dead end is an entity that is never a subject."""
    from networkx import weakly_connected_components

    network = network_of(graph)
    degrees = dict(network.degree())
    hubs = sorted(degrees, key=lambda number: (-degrees[number], number))[:HUBS]
    columns = graph.columns
    values = list(degrees.values()) or [0]
    counts = np.bincount(columns.relation, minlength=len(graph.relation_names)).tolist()
    return Topology(
        entities=len(network),
        facts=network.number_of_edges(),
        stated=int((np.diff(columns.document_starts) > 0).sum()),
        relations=tuple(sorted(zip(graph.relation_names, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))),
        components=tuple(sorted(map(len, weakly_connected_components(network)), reverse=True)),
        mean_degree=float(np.mean(values)),
        degrees={percent: int(value) for percent, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)},
        hubs=tuple(Hub(graph.entities[number], network.out_degree(number), network.in_degree(number)) for number in hubs),
        dead_ends=sum(not out for _, out in network.out_degree()),
    )
