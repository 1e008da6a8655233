"""The entity-anchored open-world memory of AgentFounder: what is known of each entity, statement by statement.

Not a graph: no statement points to another entity's entry. Each keeps where it was read, of what time it speaks and how it is written.
The memory is living: what is read later is appended. The knowledge that a question requires is a slice of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from synth.knowledge.graph import KnowledgeGraph
from synth.questions.paths import Hop, Route
from synth.questions.wording import spoken
from warehouse.records import Fact

_TIME = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing said about an entity. `relation` is what it is about; `source` is the id of the document that says it.

    `time` is the year or day (ISO 8601) that the source gives the entity, None where it gives none or several.
    """

    entity: str
    relation: str
    text: str
    source: str
    time: str | None = None


class Memory:
    """Entries by entity, in the order in which statements came; one that is there already is not taken twice."""

    def __init__(self, statements: Iterable[Statement] = ()) -> None:
        self._entries: dict[str, dict[Statement, None]] = {}
        self.append(statements)

    @classmethod
    def of(cls, graph: KnowledgeGraph, entities: Iterable[str]) -> Memory:
        """The memory of what a graph's documents say about `entities`."""
        return cls(statement for entity in entities for statement in remember(graph, entity))

    def append(self, statements: Iterable[Statement]) -> None:
        """Take in what was read."""
        for statement in statements:
            self._entries.setdefault(statement.entity, {})[statement] = None

    def about(self, entity: str) -> tuple[Statement, ...]:
        """The entry of one entity."""
        return tuple(self._entries.get(entity, ()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return sum(len(entry) for entry in self._entries.values())


def remember(graph: KnowledgeGraph, entity: str) -> tuple[Statement, ...]:
    """The entry of one entity: a statement for each fact and document that states it."""
    return statements_of(graph, graph.about(entity))


def statements_of(graph: KnowledgeGraph, facts: Iterable[Fact]) -> tuple[Statement, ...]:
    """The statements of some facts, one for each document that states it."""
    return tuple(_statement(graph, fact, source) for fact in facts for source in fact.documents)


def required_knowledge(graph: KnowledgeGraph, path: Route) -> tuple[Statement, ...]:
    """The statements that a question along `path` rests on, hop by hop; of a union those that hold."""
    return tuple(statement for hop in path for statement in statements_of(graph, _needed(graph, hop)))


def _needed(graph: KnowledgeGraph, hop: Hop) -> list[Fact]:
    wanted = {(hop.relation, hop.value), *((anchor.relation, value) for anchor in hop.anchors for value in anchor.values)}
    return [fact for fact in graph.about(hop.entity) if (fact.relation, fact.object) in wanted]


def _statement(graph: KnowledgeGraph, fact: Fact, source: str) -> Statement:
    relation = spoken(fact.relation)
    return Statement(fact.subject, relation, f"{relation} {fact.object}", source, _time(graph, fact.subject, source))


def _time(graph: KnowledgeGraph, entity: str, source: str) -> str | None:
    times = {fact.object for fact in graph.about(entity) if source in fact.documents and _TIME.fullmatch(fact.object)}
    return times.pop() if len(times) == 1 else None
