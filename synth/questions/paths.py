"""Paths from a question's constants to its answer, random walks that draw them, and bounds on what questions can reach.

A hop reads one document, found by the previous hop's value (at first the question's constant) or by two known properties: "the film with
director Amber Stone and star Blue River". A path converts to a formula, and can be traced from formula and answer.

Walks follow documented facts and use nothing twice. A value without its own document (a person in a corpus of films) leads to another
entity that shares it (a pivot). Conditions are chosen to identify the entity in the whole graph, since other draws would mostly be
rejected.

`reach` is an upper bound: walks may revisit entities, pivots and searches are not checked, and `identify` and sets are not counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, islice
from typing import TYPE_CHECKING, TypeVar

from rl.retrieval.search import Index
from synth.formulas.projections import Values, witness
from synth.formulas.triples import TARGET, VARIABLE, constant, is_constant, members
from synth.graph.columns import Ids
from synth.graph.knowledge_graph import KnowledgeGraph
from warehouse.records import Document, Triple

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, slots=True)
class Anchor:
    """Known property of the entity sought: a relation and the possible values of its object.

    If `linked`, the value comes from the previous hop; otherwise the values are in the question.
    """

    relation: str
    values: tuple[str, ...]
    linked: bool = False


@dataclass(frozen=True, slots=True)
class Hop:
    """One document to read: that of `entity`, found by name or by `anchors`; `relation` then leads to `value`.

    `relation` is None in a last hop whose answer is the entity.
    """

    entity: str
    relation: str | None
    value: str
    anchors: tuple[Anchor, ...] = ()

    @property
    def query(self) -> str:
        return " ".join(value for anchor in self.anchors for value in anchor.values) if self.anchors else self.entity


Route = tuple[Hop, ...]

Retrieve = Callable[[str], Document | None]
"""Returns the top hit of a search, or None."""


def first_hit(index: Index) -> Retrieve:
    """Wrap an index as a function that returns its top hit."""
    return lambda query: next(iter(index.find(query).documents), None)


def first_real_hit(index: Index, documents: Container[str]) -> Retrieve:
    """Like `first_hit`, but None if the hit is not in `documents`; an imperfect index also returns other documents."""

    def retrieve(query: str) -> Document | None:
        document = next(iter(index.find(query).documents), None)
        return document if document is not None and document.id in documents else None

    return retrieve


def stating_documents(graph: KnowledgeGraph, hop: Hop) -> set[str]:
    """Ids of the documents that state the hop's fact and one value of each anchor."""
    needed = [(anchor.relation, anchor.values) for anchor in hop.anchors]
    if hop.relation is not None:
        needed.append((hop.relation, (hop.value,)))
    return set.intersection(*({d for v in values for d in graph.stating(hop.entity, relation, v)} for relation, values in needed))


def find_document(graph: KnowledgeGraph, hop: Hop, retrieve: Retrieve | None) -> Document | None:
    """Document found by the hop's query, if it states what the hop needs. Titles need no search, since they are always the first hit."""
    titled = None if hop.anchors else graph.titled(hop.query)
    document = titled or (retrieve(hop.query) if retrieve is not None else None)
    return document if document is not None and document.id in stating_documents(graph, hop) else None


def formula_of(path: Route) -> tuple[Triple, ...]:
    """Conjunction of projections whose target is the end of `path`."""
    triples: list[Triple] = []
    before = constant(path[0].entity)
    for number, hop in enumerate(path, start=1):
        last = number == len(path)
        subject = before
        if hop.anchors:
            subject = TARGET if last and hop.relation is None else f"{VARIABLE}X{number}"
            triples += [(subject, a.relation, before if a.linked else constant(*a.values)) for a in hop.anchors]
        if hop.relation is not None:
            before = TARGET if last else f"{VARIABLE}Y{number}"
            triples.append((subject, hop.relation, before))
    return tuple(triples)


def trace(graph: KnowledgeGraph, formula: Sequence[Triple], answer: str, values: Values | None = None) -> Route | None:
    """Path described by `formula` that ends in `answer`; None if it is not a single line.

    Handles formulas that start at one constant, or at an entity with two or more conditions, and lead forward. `values`: the first witness,
    if known.
    """
    values = values or witness(graph, formula, answer)
    if values is None:
        return None
    hops: list[Hop] = []
    left, before = list(formula), ""
    while left:
        subject = _next_subject(left, before)
        if subject is None:
            return None
        mine = [triple for triple in left if triple[0] == subject]
        left = [triple for triple in left if triple[0] != subject]
        hop = _read_hop(mine, subject, before, left, values)
        if hop is None:
            return None
        hops.append(hop[0])
        before = hop[1]
    return tuple(hops) if hops and hops[-1].value == answer and before == TARGET else None


def _next_subject(left: Sequence[Triple], before: str) -> str | None:
    for subject, _, _ in left:
        if subject == before or (not before and is_constant(subject)):
            return subject
    for subject, _, value in left:
        if value == before or (not before and is_constant(value)):
            return subject
    return None


def _read_hop(mine: list[Triple], subject: str, before: str, left: list[Triple], values: dict[str, str]) -> tuple[Hop, str] | None:
    anchors = tuple(_anchor(triple, before, values) for triple in mine if is_constant(triple[2]) or triple[2] == before)
    followed = [triple for triple in mine if not is_constant(triple[2]) and triple[2] != before]
    entity = members(subject)[0] if is_constant(subject) else values[subject]
    if len(followed) == 1:
        _, relation, node = followed[0]
        return Hop(entity, relation, values[node], anchors), node
    if not followed and not left and subject == TARGET:
        return Hop(entity, None, entity, anchors), TARGET
    return None


def _anchor(triple: Triple, before: str, values: dict[str, str]) -> Anchor:
    _, relation, node = triple
    return Anchor(relation, (values[node],), linked=True) if node == before else Anchor(relation, members(node))


Item = TypeVar("Item")

MAX_SHARING = 100
"""Maximum entities that share a value; more (a genre, a year) are too unspecific to continue from."""
_HELD = 20_000
"""Values shared by more entities are not held as sets."""
_TRIES = 8
"""Fact pairs tried to find two that identify the entity together but not alone."""


class Shape(StrEnum):
    """Start of a question: a name, two conditions, or two conditions one of which has two possible values."""

    CHAIN = "chain"
    INTERSECTION = "intersection"
    UNION = "union"


@dataclass(frozen=True, slots=True)
class _Leg:
    entity: int
    relation: int | None
    value: int
    anchors: tuple[Anchor, ...] = ()


_Legs = tuple[_Leg, ...]
_Way = tuple[int, int]
"""Relation and object of a fact to follow."""


class Walker:
    """Draws paths through documented facts on `allowed` entities. `pivots` permits anchored hops, `sets` several answers."""

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
        """Candidates, possibly repeated: many more than `wanted`, or all that exist."""
        if not len(self._starts):
            return
        for _ in range(30 * wanted + 1_000):
            legs = self._draw(shape, hops, identify, rng)
            if legs is not None:
                yield self._route(legs)
        if shape is Shape.CHAIN:
            counted = 50 * wanted + 10_000  # bound for many-valued relations, which have countless chains
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
        entity = self._start(shape, rng)
        if entity is None:
            return None
        if shape is Shape.CHAIN:
            return self._continue((), frozenset((entity,)), entity, {entity}, (), hops, identify, rng)
        anchors = self._anchors(entity, shape, rng)
        return self._continue((), self._meet({entity}, anchors), entity, {entity}, anchors, hops, identify, rng) if anchors else None

    def _start(self, shape: Shape, rng: random.Random) -> int | None:
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
        """Extend `path` from the document of `entity` to `hops` hops.

        `met`: entities on the path; `could`: entities that fit all conditions so far, None if too many.
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
        if entities is None or not self._pivots:
            return None
        joined: set[int] = set()
        for entity in entities:
            if len(joined) + self._columns.spread(entity, relation) > 3 * MAX_SHARING:
                return None
            joined |= self._graph.image(entity, relation)
        return joined

    def _meet(self, met: set[int], anchors: tuple[Anchor, ...]) -> frozenset[int]:
        numbers = (self._names.number(value) for anchor in anchors for value in anchor.values)
        return frozenset(met.union(number for number in numbers if number is not None))

    def _ways(self, entity: int, met: frozenset[int], last: bool) -> list[_Way]:
        """Facts of `entity` that lead to a new entity and, unless `last`, on to another document.

        A last fact must be the only one of its relation (one answer), unless sets are wanted.
        """
        ways = [way for way in self._columns.stated(entity) if way[1] not in met and self._permits(way[1])]
        if not last:
            return [way for way in ways if self._columns.stated(way[1]) or (self._pivots and self._narrow(way))]
        return ways if self._sets else [way for way in ways if len(self._columns.objects(entity, way[0])) == 1]

    def _pivot(self, way: _Way, met: frozenset[int], sharing: set[int] | None, rng: random.Random) -> tuple[int, tuple[Anchor, ...]] | None:
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
        for value in values:
            if self._columns.spread(value, relation) <= _HELD:
                if any(other != entity for other in entities & self._graph.image(value, relation)):
                    return False
            elif any(other != entity and self._columns.joined(other, relation, value) for other in entities):
                return False
        return True

    def _anchors(self, entity: int, shape: Shape, rng: random.Random) -> tuple[Anchor, ...]:
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
        return 1 < self._columns.spread(way[1], way[0]) <= MAX_SHARING

    def _tells(self, entity: int, first: _Way, second: _Way, other: str) -> bool:
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
        if text.isdecimal():
            return str(int(text) + 1)
        relation = way[0]
        if relation not in self._values:
            self._values[relation] = self._graph.value_numbers(relation)
        return self._names[self._values[relation].item(rng.randrange(len(self._values[relation])))]

    def _enumerate(self, hops: int, rng: random.Random) -> Iterator[_Legs]:
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


MOST_HOPS = 6
"""Maximum hops in `QuestionConfig.counts`."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Usable facts and entities, and upper bounds on the entities that questions of 1, 2, … hops can end at (`answers`)."""

    facts: int
    entities: int
    answers: tuple[int, ...]


def reach(graph: KnowledgeGraph, allowed: Callable[[str], bool] | None = None, hops: int = MOST_HOPS) -> Reach:
    """Bounds for questions of up to `hops` hops on `allowed` entities (None: all)."""
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


def _permitted(graph: KnowledgeGraph, allowed: Callable[[str], bool] | None) -> frozenset[int]:
    count = len(graph.columns.object_starts) - 1
    return frozenset(range(count) if allowed is None else (number for number in range(count) if allowed(graph.entities[number])))


def _steps(graph: KnowledgeGraph, usable: dict[int, _Ways]) -> networkx.DiGraph:
    """Graph of consecutive reads; entities that share a value are joined through a node for it."""
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
    for node in steps.successors(entity):
        if isinstance(node, tuple):
            yield from (other for other in steps.successors(node) if other != entity)
        else:
            yield node


def _ends(graph: KnowledgeGraph, entity: int, ways: _Ways) -> Iterable[int]:
    return (value for relation, value in ways if len(graph.columns.objects(entity, relation)) == 1)
