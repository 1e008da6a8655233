"""The entity-anchored open-world memory of AgentFounder: what is known of each entity, statement by statement.

Not a graph: no statement points to another entity's entry. Each keeps where it was read and how it is written. The knowledge that
a question requires is a slice of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from synth.graph import KnowledgeGraph
from synth.paths import Hop, Route
from synth.wording import spoken
from warehouse.records import Fact


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing said about an entity. `relation` is what it is about; `source` is the id of the document that says it."""

    entity: str
    relation: str
    text: str
    source: str


def remember(graph: KnowledgeGraph, entity: str) -> tuple[Statement, ...]:
    """The entry of one entity: a statement for each fact and document that states it."""
    return tuple(_statement(fact, source) for fact in graph.about(entity) for source in fact.documents)


def required_knowledge(graph: KnowledgeGraph, path: Route) -> tuple[Statement, ...]:
    """The statements that a question along `path` rests on, hop by hop; of a union those that hold."""
    return tuple(_statement(fact, source) for hop in path for fact in _needed(graph, hop) for source in fact.documents)


def _needed(graph: KnowledgeGraph, hop: Hop) -> list[Fact]:
    wanted = {(hop.relation, hop.value), *((anchor.relation, value) for anchor in hop.anchors for value in anchor.values)}
    return [fact for fact in graph.about(hop.entity) if (fact.relation, fact.object) in wanted]


def _statement(fact: Fact, source: str) -> Statement:
    relation = spoken(fact.relation)
    return Statement(fact.subject, relation, f"{relation} {fact.object}", source)
