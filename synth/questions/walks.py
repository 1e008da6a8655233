"""Candidate paths for questions: drawn at random, and where that runs dry, chains are counted out one by one.

A walk follows stated facts from document to document and meets nothing twice. A value without a document of its own (a person in
a corpus of films) is left by another entity that has it and by a second thing known about that entity. Things known are chosen
so that they say which entity is meant, as far as the whole graph is concerned: most other draws would only be dropped afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, islice
from typing import TypeVar

from synth.graph.columns import Ids
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import Anchor, Hop, Route

Item = TypeVar("Item")

MAX_SHARING = 100
"""A value that more entities share (a genre, a year) says too little of any of them to go on from it."""
_HELD = 20_000
"""A value that more entities share has no set of them: each is then asked whether it does."""
_TRIES = 8
"""Pairs of facts that are tried for two that together, and neither of them alone, say which entity is meant."""


class Shape(StrEnum):
    """How a question begins: at a name, at two things known, or at two things of which one is left open between two values."""

    CHAIN = "chain"
    INTERSECTION = "intersection"
    UNION = "union"


@dataclass(frozen=True, slots=True)
class _Leg:
    """One hop in the numbers of the graph; `relation` is None where the answer is the entity itself."""

    entity: int
    relation: int | None
    value: int
    anchors: tuple[Anchor, ...] = ()


_Legs = tuple[_Leg, ...]
_Way = tuple[int, int]
"""The relation and the object of a fact that could be followed."""


class Walker:
    """Paths through the stated facts of a graph, on entities that are `allowed`.

    `pivots` permits anchored hops, `sets` last hops that lead to several answers.
    """

    def __init__(
        self, graph: KnowledgeGraph, allowed: Callable[[str], bool] | None = None, pivots: bool = True, sets: bool = False
    ) -> None:
        self._graph, self._columns, self._names = graph, graph.columns, graph.entities
        self._allowed = allowed
        self._pivots, self._sets = pivots, sets
        self._permitted: dict[int, bool] = {}
        self._values: dict[int, Ids] = {}
        self._starts = self._columns.stated_subjects()
        self._tellable: Ids | None = None

    def paths(self, shape: Shape, hops: int, identify: float, rng: random.Random, wanted: int) -> Iterator[Route]:
        """Candidates, possibly some of them twice: many more than `wanted`, or all that there are if those are fewer."""
        if not len(self._starts):
            return
        for _ in range(30 * wanted + 1_000):
            legs = self._draw(shape, hops, identify, rng)
            if legs is not None:
                yield self._route(legs)
        if shape is Shape.CHAIN:
            counted = 50 * wanted + 10_000  # a bound, for a graph of many-valued relations has chains without number
            for legs in self._enumerate(hops, rng):
                yield self._route(legs)
                counted -= 1
                if not counted:
                    return

    def _route(self, legs: _Legs) -> Route:
        relations, names = self._graph.relation_names, self._names
        return tuple(
            Hop(names[leg.entity], None if leg.relation is None else relations[leg.relation], names[leg.value], leg.anchors) for leg in legs
        )

    def _permits(self, entity: int) -> bool:
        if self._allowed is None:
            return True
        if entity not in self._permitted:
            self._permitted[entity] = self._allowed(self._names[entity])
        return self._permitted[entity]

    def _draw(self, shape: Shape, hops: int, identify: float, rng: random.Random) -> _Legs | None:
        """One random path, or None where the walk ran into a wall."""
        entity = self._start(shape, rng)
        if entity is None:
            return None
        if shape is Shape.CHAIN:
            return self._continue((), frozenset((entity,)), entity, {entity}, (), hops, identify, rng)
        anchors = self._anchors(entity, shape, rng)
        return self._continue((), self._meet({entity}, anchors), entity, {entity}, anchors, hops, identify, rng) if anchors else None

    def _start(self, shape: Shape, rng: random.Random) -> int | None:
        """An entity that is allowed, and of which something can be known that tells it; None where hardly any is."""
        starts = self._starts
        if shape is not Shape.CHAIN and not self._sets:
            if self._tellable is None:
                self._tellable = self._columns.subjects_with_shared_facts(MAX_SHARING)
            starts = self._tellable
        drawn = (starts.item(rng.randrange(len(starts))) for _ in range(MAX_SHARING if len(starts) else 0))
        return next(filter(self._permits, drawn), None)

    def _continue(
        self,
        path: _Legs,
        met: frozenset[int],
        entity: int,
        could: set[int] | None,
        anchors: tuple[Anchor, ...],
        hops: int,
        identify: float,
        rng: random.Random,
    ) -> _Legs | None:
        """`path` led on by the document of `entity` until it has `hops` hops.

        `met` is everything the path names, `entity` included; `could` is what else fits all that is said up to here, None for too much.
        """
        last = len(path) + 1 == hops
        if last and anchors and rng.random() < identify:
            return (*path, _Leg(entity, None, entity, anchors))
        way = _pick(self._ways(entity, met, last), rng)
        if way is None:
            return None
        path = (*path, _Leg(entity, *way, anchors))
        if last:
            return path
        could = self._image(could, way[0])
        if self._columns.stated(way[1]):
            return self._continue(path, met | {way[1]}, way[1], could, (), hops, identify, rng)
        pivot = self._pivot(way, met, self._image(could, way[0]), rng)
        if pivot is None:
            return None
        entity, anchors = pivot
        return self._continue(path, self._meet({*met, way[1], entity}, anchors), entity, {entity}, anchors, hops, identify, rng)

    def _image(self, entities: set[int] | None, relation: int) -> set[int] | None:
        """What a relation joins with some entities; None where that is much, or where nobody will ask."""
        if entities is None or not self._pivots:
            return None
        joined: set[int] = set()
        for entity in entities:
            if len(joined) + self._columns.spread(entity, relation) > 3 * MAX_SHARING:
                return None
            joined |= self._graph.image(entity, relation)
        return joined

    def _meet(self, met: set[int], anchors: tuple[Anchor, ...]) -> frozenset[int]:
        """`met` with the values of anchors; a value that is no entity cannot be met again."""
        numbers = (self._names.number(value) for anchor in anchors for value in anchor.values)
        return frozenset(met.union(number for number in numbers if number is not None))

    def _ways(self, entity: int, met: frozenset[int], last: bool) -> list[_Way]:
        """The facts of `entity` that can be followed: to something not met, and unless it is the last, to where a document comes after.

        The last one must be the only one of its relation, for otherwise there is more than one answer; unless sets are wanted.
        """
        ways = [way for way in self._columns.stated(entity) if way[1] not in met and self._permits(way[1])]
        if not last:
            return [way for way in ways if self._columns.stated(way[1]) or (self._pivots and self._narrow(way))]
        return ways if self._sets else [way for way in ways if len(self._columns.objects(entity, way[0])) == 1]

    def _pivot(self, way: _Way, met: frozenset[int], sharing: set[int] | None, rng: random.Random) -> tuple[int, tuple[Anchor, ...]] | None:
        """An entity that shares a value with those before, and how it is found among all that could be `sharing` it."""
        relation, value = way
        if sharing is None:
            return None
        entity = _pick([other for other in self._columns.subjects(value, relation) if other not in met and self._permits(other)], rng)
        if entity is None:
            return None
        seconds = [way for way in self._columns.stated(entity) if way[1] not in met and way[1] != value]
        telling = (way for way in rng.sample(seconds, len(seconds)) if self._sets or self._only(entity, sharing, way[0], way[1:]))
        second = next(telling, None)
        if second is None:
            return None
        relations = self._graph.relation_names
        linked = Anchor(relations[relation], (self._names[value],), linked=True)
        return entity, (linked, Anchor(relations[second[0]], (self._names[second[1]],)))

    def _only(self, entity: int, entities: Set[int], relation: int, values: Collection[int]) -> bool:
        """Whether a relation joins none of `entities` but `entity` with one of the values."""
        for value in values:
            if self._columns.spread(value, relation) <= _HELD:
                if any(other != entity for other in entities & self._graph.image(value, relation)):
                    return False
            elif any(other != entity and self._columns.joined(other, relation, value) for other in entities):
                return False
        return True

    def _anchors(self, entity: int, shape: Shape, rng: random.Random) -> tuple[Anchor, ...]:
        """Two things to know about `entity`, the second left open for a union; none where it has no two that tell it."""
        facts = self._columns.stated(entity)
        pairs = combinations(rng.sample(facts, len(facts)), 2)
        likely = ((first, second) for first, second in pairs if self._sets or self._narrow(first) or self._narrow(second))
        for first, second in islice(likely, _TRIES):
            if first[1] == second[1] or not self._permits(first[1]):
                continue
            text = self._names[second[1]]
            other = self._another(second, text, rng) if shape is Shape.UNION else text
            value = self._names[first[1]]
            if value == other or (shape is Shape.UNION and other == text):
                continue
            if self._sets or self._tells(entity, first, second, other):
                relations = self._graph.relation_names
                return Anchor(relations[first[0]], (value,)), Anchor(relations[second[0]], tuple(sorted({text, other})))
        return ()

    def _narrow(self, way: _Way) -> bool:
        """Whether a fact leaves several entities to choose from, and not too many."""
        return 1 < self._columns.spread(way[1], way[0]) <= MAX_SHARING

    def _tells(self, entity: int, first: _Way, second: _Way, other: str) -> bool:
        """Whether a fact and another, or the other value for it, together say which entity is meant, and neither does so alone."""
        number = self._names.number(other)
        values = {second[1]} if number is None else {second[1], number}
        sizes = self._columns.spread(first[1], first[0]), sum(self._columns.spread(value, second[0]) for value in values)
        if not 1 < min(sizes) <= MAX_SHARING:
            return False
        if sizes[0] <= sizes[1]:
            return self._only(entity, self._graph.image(first[1], first[0]), second[0], values)
        sharing = {known for value in values for known in self._graph.image(value, second[0])}
        return self._only(entity, sharing, first[0], first[1:])

    def _another(self, way: _Way, text: str, rng: random.Random) -> str:
        """Another value of a fact's relation: the next number where it is a number, else any, at times the same."""
        if text.isdecimal():
            return str(int(text) + 1)
        relation = way[0]
        if relation not in self._values:
            self._values[relation] = self._graph.value_numbers(relation)
        return self._names[self._values[relation].item(rng.randrange(len(self._values[relation])))]

    def _enumerate(self, hops: int, rng: random.Random) -> Iterator[_Legs]:
        """Every chain of `hops` documents that are found by their names, from the starts that are allowed in random order."""
        for entity in filter(self._permits, rng.sample(list(map(int, self._starts)), len(self._starts))):
            yield from self._chains((), frozenset((entity,)), entity, hops)

    def _chains(self, path: _Legs, met: frozenset[int], entity: int, hops: int) -> Iterator[_Legs]:
        for way in self._ways(entity, met, last=len(path) + 1 == hops):
            longer = (*path, _Leg(entity, *way))
            if len(longer) == hops:
                yield longer
            elif self._columns.stated(way[1]):
                yield from self._chains(longer, met | {way[1]}, way[1], hops)


def _pick(items: Sequence[Item], rng: random.Random) -> Item | None:
    return rng.choice(items) if items else None
