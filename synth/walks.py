"""Candidate paths for questions: drawn at random, and where that runs dry, chains are counted out one by one.

A walk follows stated facts from document to document and meets nothing twice. A value without a document of its own (a person in
a corpus of films) is left by another entity that has it and by a second thing known about that entity.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import TypeVar

from synth.graph import KnowledgeGraph
from synth.paths import Anchor, Hop, Route
from warehouse.records import Fact

Item = TypeVar("Item")

MAX_SHARING = 100
"""A value that more entities share (a genre, a year) says too little of any of them to go on from it."""


class Shape(StrEnum):
    """How a question begins: at a name, at two things known, or at two things of which one is left open between two values."""

    CHAIN = "chain"
    INTERSECTION = "intersection"
    UNION = "union"


class Walker:
    """Paths through the stated facts of a graph, on entities that are `allowed`; `pivots` permits anchored hops."""

    def __init__(self, graph: KnowledgeGraph, allowed: Callable[[str], bool] | None = None, pivots: bool = True) -> None:
        self._graph = graph
        self._allowed = allowed
        self._pivots = pivots
        self._starts = [entity for entity in graph.subjects if self._permits(entity) and self._stated(entity)]
        self._values: dict[str, list[str]] = {}

    def paths(self, shape: Shape, hops: int, identify: float, rng: random.Random, wanted: int) -> Iterator[Route]:
        """Candidates, possibly some of them twice: many more than `wanted`, or all that there are if those are fewer."""
        if not self._starts:
            return
        for _ in range(30 * wanted + 1_000):
            path = self._draw(shape, hops, identify, rng)
            if path is not None:
                yield path
        if shape is Shape.CHAIN:
            counted = 50 * wanted + 10_000  # a bound, for a graph of many-valued relations has chains without number
            for path in self._enumerate(hops, rng):
                yield path
                counted -= 1
                if not counted:
                    return

    def _permits(self, entity: str) -> bool:
        return self._allowed is None or self._allowed(entity)

    def _stated(self, entity: str) -> list[Fact]:
        return [fact for fact in self._graph.about(entity) if fact.documents and fact.object != entity]

    def _draw(self, shape: Shape, hops: int, identify: float, rng: random.Random) -> Route | None:
        """One random path, or None where the walk ran into a wall."""
        entity = rng.choice(self._starts)
        if shape is Shape.CHAIN:
            return self._continue((), entity, (), hops, identify, rng)
        anchors = self._anchors(entity, shape, rng)
        return self._continue((), entity, anchors, hops, identify, rng) if anchors else None

    def _continue(
        self, path: Route, entity: str, anchors: tuple[Anchor, ...], hops: int, identify: float, rng: random.Random
    ) -> Route | None:
        """`path` led on by the document of `entity` until it has `hops` hops."""
        met = _met(path) | {entity} | {value for anchor in anchors for value in anchor.values}
        last = len(path) + 1 == hops
        if last and anchors and rng.random() < identify:
            return (*path, Hop(entity, None, entity, anchors))
        fact = _pick(self._ways(entity, met, last), rng)
        if fact is None:
            return None
        path = (*path, Hop(entity, fact.relation, fact.object, anchors))
        if last:
            return path
        following = self._following(fact, met, rng)
        return self._continue(path, *following, hops, identify, rng) if following else None

    def _ways(self, entity: str, met: set[str], last: bool) -> list[Fact]:
        """The facts of `entity` that can be followed: to something not met.

        The last one must be the only one of its relation, for otherwise there is more than one answer.
        """
        ways = [fact for fact in self._stated(entity) if fact.object not in met and self._permits(fact.object)]
        return [f for f in ways if len(self._graph.objects(entity, f.relation)) == 1] if last else ways

    def _following(self, fact: Fact, met: set[str], rng: random.Random) -> tuple[str, tuple[Anchor, ...]] | None:
        """The entity whose document comes after the value of `fact`, and how it is found."""
        if self._stated(fact.object):
            return fact.object, ()
        sharing = self._graph.subjects_of(fact.relation, fact.object) if self._pivots else []
        if len(sharing) > MAX_SHARING:
            return None
        entity = _pick([other for other in sharing if other not in met and self._permits(other)], rng)
        if entity is None:
            return None
        second = _pick([f for f in self._stated(entity) if f.object not in met and f.object != fact.object], rng)
        if second is None:
            return None
        return entity, (Anchor(fact.relation, (fact.object,), linked=True), Anchor(second.relation, (second.object,)))

    def _anchors(self, entity: str, shape: Shape, rng: random.Random) -> tuple[Anchor, ...]:
        """Two things to know about `entity`, the second left open for a union; none where it has no two."""
        facts = self._stated(entity)
        if len(facts) < 2:
            return ()
        first, second = rng.sample(facts, 2)
        values = self._open(second, rng) if shape is Shape.UNION else (second.object,)
        too_few = shape is Shape.UNION and len(values) < 2
        if too_few or first.object in values or not self._permits(first.object):
            return ()
        return Anchor(first.relation, (first.object,)), Anchor(second.relation, values)

    def _open(self, fact: Fact, rng: random.Random) -> tuple[str, ...]:
        """The object of `fact` and another value of its relation: the next number where it is a number, else any."""
        if fact.relation not in self._values:
            self._values[fact.relation] = self._graph.values(fact.relation)
        other = str(int(fact.object) + 1) if fact.object.isdecimal() else rng.choice(self._values[fact.relation])
        return tuple(sorted({fact.object, other}))

    def _enumerate(self, hops: int, rng: random.Random) -> Iterator[Route]:
        """Every chain of `hops` documents that are found by their names, from the starts in random order."""
        for entity in rng.sample(self._starts, len(self._starts)):
            yield from self._chains((), entity, hops)

    def _chains(self, path: Route, entity: str, hops: int) -> Iterator[Route]:
        for fact in self._ways(entity, _met(path) | {entity}, last=len(path) + 1 == hops):
            longer = (*path, Hop(entity, fact.relation, fact.object))
            if len(longer) == hops:
                yield longer
            elif self._stated(fact.object):
                yield from self._chains(longer, fact.object, hops)


def _met(path: Route) -> set[str]:
    """Everything that a path names."""
    return {name for hop in path for name in (hop.entity, hop.value, *(v for anchor in hop.anchors for v in anchor.values))}


def _pick(items: Sequence[Item], rng: random.Random) -> Item | None:
    return rng.choice(items) if items else None
