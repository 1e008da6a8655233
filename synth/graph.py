"""The knowledge graph: facts with the documents that state them, indexed for knowledge projections.

Plain dictionaries answer projections, at a million entities as well; `structure()` hands the same graph to networkx for
whatever asks about its shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from warehouse.corpora.corpus import Corpus
from warehouse.records import Document, Fact

if TYPE_CHECKING:
    import networkx

_Index = dict[str, dict[str, list[str]]]


class KnowledgeGraph:
    """Facts as edges from subject to object, labelled by their relation; equal triples are one edge."""

    def __init__(self, facts: Iterable[Fact], documents: Iterable[Document] = (), types: Mapping[str, str] | None = None) -> None:
        self.documents: dict[str, Document] = {document.id: document for document in documents}
        self.types: Mapping[str, str] = types or {}
        self._outgoing: dict[str, list[Fact]] = {}
        self._objects: _Index = {}
        self._subjects: _Index = {}
        for fact in facts:
            self._add(fact)
        self.subjects: tuple[str, ...] = tuple(self._outgoing)
        """The entities that facts speak of, in the order of their first fact."""
        self._titles: dict[str, list[Document]] = {}
        for document in self.documents.values():
            self._titles.setdefault(document.title.casefold(), []).append(document)

    @classmethod
    def of(cls, corpus: Corpus) -> KnowledgeGraph:
        """The graph of a corpus, its documents and types at hand."""
        return cls(corpus.facts, corpus.documents, corpus.types)

    def _add(self, fact: Fact) -> None:
        objects = self._objects.setdefault(fact.relation, {}).setdefault(fact.subject, [])
        if fact.object in objects:
            self._merge(fact)
            return
        objects.append(fact.object)
        self._subjects.setdefault(fact.relation, {}).setdefault(fact.object, []).append(fact.subject)
        self._outgoing.setdefault(fact.subject, []).append(fact)

    def _merge(self, again: Fact) -> None:
        """Take over the documents of a fact that is known already."""
        facts = self._outgoing[again.subject]
        place = next(i for i, fact in enumerate(facts) if (fact.relation, fact.object) == (again.relation, again.object))
        documents = tuple(dict.fromkeys(facts[place].documents + again.documents))
        facts[place] = replace(facts[place], documents=documents)

    @property
    def relations(self) -> list[str]:
        """The names of the relations, in the order of their first fact."""
        return list(self._objects)

    def about(self, entity: str) -> list[Fact]:
        """The facts whose subject is `entity`."""
        return self._outgoing.get(entity, [])

    def objects(self, subject: str, relation: str) -> list[str]:
        """What `relation` leads to from `subject`."""
        return self._objects.get(relation, {}).get(subject, [])

    def values(self, relation: str) -> list[str]:
        """Everything that is the object of `relation` somewhere, in the order of its first fact."""
        return list(self._subjects.get(relation, {}))

    def subjects_of(self, relation: str, value: str) -> list[str]:
        """The entities that `relation` leads from to `value`."""
        return self._subjects.get(relation, {}).get(value, [])

    def adjacent(self, relation: str, entity: str) -> list[str]:
        """The undirected image of one entity: its objects under `relation`, then its subjects; an entity can stand in both."""
        return self.objects(entity, relation) + self.subjects_of(relation, entity)

    def project(self, relation: str, entities: Iterable[str]) -> set[str]:
        """The knowledge projection R(V) = { u | some v in V with (u, v) in R or (v, u) in R } (WebShaper)."""
        return {other for entity in entities for other in self.adjacent(relation, entity)}

    def endpoints(self, relation: str) -> set[str]:
        """Everything that takes part in `relation`: its projection of the whole universe."""
        return {*self._objects.get(relation, {}), *self._subjects.get(relation, {})}

    def stating(self, subject: str, relation: str, value: str) -> tuple[str, ...]:
        """The ids of the documents that state a fact; none where the graph lacks the fact."""
        for fact in self.about(subject):
            if fact.relation == relation and fact.object == value:
                return fact.documents
        return ()

    def titled(self, title: str) -> Document | None:
        """The only document of that title, whatever its case; None where there is none or more than one."""
        documents = self._titles.get(title.casefold(), [])
        return documents[0] if len(documents) == 1 else None

    def facts(self) -> Iterator[Fact]:
        """Every fact once."""
        for stated in self._outgoing.values():
            yield from stated

    def structure(self) -> networkx.MultiDiGraph:
        """The same graph in networkx: nodes are entities, edges carry their relation as key."""
        import networkx

        graph = networkx.MultiDiGraph()
        graph.add_edges_from((fact.subject, fact.object, fact.relation) for fact in self.facts())
        return graph
