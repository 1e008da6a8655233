"""How much of a graph questions can reach: which facts they may use, and at which entities a question of so many hops can end.

A question reads one document a hop. From an entity it goes on to what a stated fact of it leads to, if something is stated of that, or
else (a pivot) to another entity that shares the value with not too many; see `synth.questions.walks`. The steps are a directed graph, and
what can be read after h - 1 of them can end a question of h hops whose answer is the one value of a fact. That is an upper bound: here a
way may meet an entity twice, and nobody asks whether a pivot is told from all others or whether a search finds its document. Questions
for an entity itself (`identify`) and for sets of answers end elsewhere and are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.walks import MAX_SHARING

if TYPE_CHECKING:
    import networkx

MOST_HOPS = 6
"""The deepest questions that `QuestionConfig.counts` can ask for."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What questions over the entities that are allowed can use: stated facts between two of these, and the entities that have one.

    `answers` are the entities at which a question of 1, 2, … hops can end, at most.
    """

    facts: int
    entities: int
    answers: tuple[int, ...]


def reach(graph: KnowledgeGraph, allowed: Callable[[str], bool] | None = None, hops: int = MOST_HOPS) -> Reach:
    """What questions of up to `hops` hops can reach where an entity must be `allowed`, each by its name; None allows all."""
    permitted = _permitted(graph, allowed)
    usable = {
        entity: [way for way in graph.columns.stated(entity) if way[1] in permitted]
        for entity in graph.columns.stated_subjects().tolist()
        if entity in permitted
    }
    touched = {entity for entity, ways in usable.items() if ways} | {value for ways in usable.values() for _, value in ways}
    steps, read, answers = _steps(graph, usable), set(usable), list[int]()
    for _ in range(hops):
        answers.append(len({value for entity in read for value in _ends(graph, entity, usable[entity])}))
        read = {following for entity in read for following in _following(steps, entity)}
    return Reach(sum(map(len, usable.values())), len(touched), tuple(answers))


_Ways = list[tuple[int, int]]
"""Relation and object of the facts of an entity that questions may use."""


def _permitted(graph: KnowledgeGraph, allowed: Callable[[str], bool] | None) -> frozenset[int]:
    count = len(graph.columns.object_starts) - 1
    return frozenset(range(count) if allowed is None else (number for number in range(count) if allowed(graph.entities[number])))


def _steps(graph: KnowledgeGraph, usable: dict[int, _Ways]) -> networkx.DiGraph:
    """The entities that can be read one after the other; those that share a value stand behind a node for that value and relation."""
    from networkx import DiGraph

    steps = DiGraph()
    steps.add_nodes_from(usable)
    for entity, ways in usable.items():
        for relation, value in ways:
            if value in usable:
                steps.add_edge(entity, value)
            elif 1 < graph.columns.spread(value, relation) <= MAX_SHARING:
                steps.add_edge(entity, (relation, value))
                steps.add_edge((relation, value), entity)
    return steps


def _following(steps: networkx.DiGraph, entity: int) -> Iterable[Hashable]:
    """What can be read after an entity."""
    for node in steps.successors(entity):
        if isinstance(node, tuple):
            yield from (other for other in steps.successors(node) if other != entity)
        else:
            yield node


def _ends(graph: KnowledgeGraph, entity: int, ways: _Ways) -> Iterable[int]:
    """The answers of a last hop: a fact that is the only one of its relation."""
    return (value for relation, value in ways if len(graph.columns.objects(entity, relation)) == 1)
