"""Evaluate formulas over a knowledge graph: return exactly the entities that the graph proves to be answers.

A formula whose unknowns form a tree is WebShaper's recursion T = R1(T1) ∩ … ∩ Rk(Tk), evaluated from the leaves to the target. A formula
with a cycle is relaxed to a tree (a superset), and each candidate is proved by a search for values of all unknowns. Facts hold in both
directions.

Sets are evaluated in the cheapest of three ways: as an image built from the smallest part, by testing candidates against larger parts, or
one by one until the first hit. A genre shared by ten thousand films thus costs little when intersected with an actor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Protocol

from synth.formulas.triples import (
    TARGET,
    Constant,
    Expression,
    Intersection,
    MalformedFormula,
    Projection,
    Variable,
    definitions,
    from_triples,
    has_circle,
    is_constant,
    members,
    to_triples,
)
from synth.graph.columns import FactColumns
from synth.graph.knowledge_graph import KnowledgeGraph
from warehouse.records import Triple

_WIDER = 4
"""Test candidates one by one if the next image would be larger by this factor."""


class EntitySet(Protocol):
    """Set denoted by an expression over one graph. Repeated variables are independent; an undefined variable is any entity."""

    size: int
    """Approximate size; exact for neighbours of constants."""

    def image(self) -> set[int] | None:
        """All members; None means every entity."""

    def values(self) -> Iterator[int]:
        """Iterate over members of a bounded set, possibly with repeats."""

    def holds(self, value: int) -> bool: ...


class Matcher:
    """Converts expressions to sets of entity numbers; constants not in the graph get negative numbers."""

    __slots__ = ("_graph", "_unknown")

    def __init__(self, graph: KnowledgeGraph) -> None:
        self._graph = graph
        self._unknown: list[str] = []

    def name(self, number: int) -> str:
        return self._graph.entities[number] if number >= 0 else self._unknown[-1 - number]

    def part(self, expression: Expression) -> EntitySet:
        match expression:
            case Projection(relation, source):
                return self._projected(relation, source)
            case Intersection(parts):
                return _Intersected([self.part(part) for part in parts])
            case Variable(_, definition):
                return _AnyEntity(len(self._graph.entities)) if definition is None else self.part(definition)
            case Constant(names):
                return _Constants({self._number(name) for name in names})
        return _United([self.part(part) for part in expression.parts])

    def _projected(self, name: str, source: Expression) -> EntitySet:
        relation = self._graph.relation_number(name)
        if relation is None:
            return _Constants(set())
        inner = self.part(source)
        if isinstance(inner, _AnyEntity):
            return _Endpoints(self._graph.columns, relation)
        if isinstance(inner, _Constants):
            return _Neighbours(self._graph, relation, [number for number in inner.numbers if number >= 0])
        return _Projected(self._graph.columns, relation, inner)

    def _number(self, name: str) -> int:
        number = self._graph.entities.number(name)
        if number is not None:
            return number
        if name not in self._unknown:
            self._unknown.append(name)
        return -1 - self._unknown.index(name)


class _AnyEntity:
    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size

    def image(self) -> set[int] | None:
        return None

    def values(self) -> Iterator[int]:
        return iter(range(self.size))

    def holds(self, value: int) -> bool:
        return True


class _Constants:
    __slots__ = ("numbers", "size")

    def __init__(self, numbers: set[int]) -> None:
        self.numbers, self.size = numbers, len(numbers)

    def image(self) -> set[int] | None:
        return set(self.numbers)

    def values(self) -> Iterator[int]:
        return iter(self.numbers)

    def holds(self, value: int) -> bool:
        return value in self.numbers


class _Neighbours:
    __slots__ = ("_asked", "_columns", "_constants", "_graph", "_image", "_relation", "size")

    def __init__(self, graph: KnowledgeGraph, relation: int, constants: Sequence[int]) -> None:
        self._graph, self._columns, self._relation, self._constants = graph, graph.columns, relation, constants
        self.size = sum(self._columns.spread(constant, relation) for constant in constants)
        self._asked = 0
        self._image: Set[int] | None = None

    def image(self) -> set[int]:
        return set().union(*(self._graph.image(constant, self._relation) for constant in self._constants))

    def values(self) -> Iterator[int]:
        for constant in self._constants:
            yield from self._columns.objects(constant, self._relation)
            yield from self._columns.subjects_one_by_one(constant, self._relation)

    def holds(self, value: int) -> bool:
        if self._image is None:
            self._asked += 1
            if 8 * self._asked < self.size and not self._is_held():  # a few tests cost less than the image
                return value >= 0 and any(self._columns.joined(value, self._relation, constant) for constant in self._constants)
            self._image = self._graph.image(self._constants[0], self._relation) if len(self._constants) == 1 else self.image()
        return value in self._image

    def _is_held(self) -> bool:
        return len(self._constants) == 1 and self._graph.holds_image(self._constants[0], self._relation)


class _Projected:
    __slots__ = ("_asked", "_columns", "_image", "_relation", "_source", "size")

    def __init__(self, columns: FactColumns, relation: int, source: EntitySet) -> None:
        self._columns, self._relation, self._source = columns, relation, source
        self.size = min(2 * source.size, 2 * len(columns.with_relation(relation)))
        self._asked = 0
        self._image: set[int] | None = None

    def image(self) -> set[int]:
        inner = self._source.image()
        if inner is None:
            return set(self._columns.endpoints(self._relation))
        return {other for entity in inner if entity >= 0 for other in self._columns.adjacent(entity, self._relation)}

    def values(self) -> Iterator[int]:
        seen: set[int] = set()
        for entity in self._source.values():
            if entity >= 0 and entity not in seen:
                seen.add(entity)
                yield from self._columns.adjacent(entity, self._relation)

    def holds(self, value: int) -> bool:
        if self._image is None:
            self._asked += 1
            if 8 * self._asked < self.size:
                return value >= 0 and any(map(self._source.holds, self._columns.adjacent(value, self._relation)))
            self._image = self.image()
        return value in self._image


class _Endpoints:
    __slots__ = ("_columns", "_relation", "size")

    def __init__(self, columns: FactColumns, relation: int) -> None:
        self._columns, self._relation = columns, relation
        self.size = 2 * len(columns.with_relation(relation))

    def image(self) -> set[int] | None:
        return set(self._columns.endpoints(self._relation))

    def values(self) -> Iterator[int]:
        for place in self._columns.with_relation(self._relation):
            yield self._columns.subject.item(place)
            yield self._columns.object.item(place)

    def holds(self, value: int) -> bool:
        return value >= 0 and self._columns.spread(value, self._relation) > 0


class _Intersected:
    __slots__ = ("_parts", "size")

    def __init__(self, parts: Sequence[EntitySet]) -> None:
        self._parts = sorted(parts, key=lambda part: part.size)
        self.size = self._parts[0].size

    def image(self) -> set[int] | None:
        met: set[int] | None = None
        for part in self._parts:
            if met is not None and part.size > _WIDER * len(met):
                met = set(filter(part.holds, met))
            else:
                image = part.image()
                met = image if met is None else met if image is None else met & image
        return met

    def values(self) -> Iterator[int]:
        first, *others = self._parts
        return (value for value in first.values() if all(part.holds(value) for part in others))

    def holds(self, value: int) -> bool:
        return all(part.holds(value) for part in self._parts)


class _United:
    __slots__ = ("_parts", "size")

    def __init__(self, parts: Sequence[EntitySet]) -> None:
        self._parts, self.size = parts, sum(part.size for part in parts)

    def image(self) -> set[int] | None:
        joined: set[int] = set()
        for part in self._parts:
            image = part.image()
            if image is None:
                return None
            joined |= image
        return joined

    def values(self) -> Iterator[int]:
        for part in self._parts:
            yield from part.values()

    def holds(self, value: int) -> bool:
        return any(part.holds(value) for part in self._parts)


Values = dict[str, str]
"""Values of unknowns by node."""
_LARGE = 64
"""Number of neighbours above which other constraints are checked first."""
_DEAD_ENDS = 64
"""Number of dead ends after which values are first tested against the whole expression below their unknown."""


def solve(graph: KnowledgeGraph, formula: Sequence[Triple]) -> frozenset[str]:
    """Answers to `formula`: every target value for which all unknowns have values. Raises MalformedFormula."""
    return evaluate(graph, from_triples(formula))


def evaluate(graph: KnowledgeGraph, expression: Expression) -> frozenset[str]:
    """Entities denoted by `expression`.

    Raises:
        MalformedFormula: the expression is unbounded, or repeats a variable without being a conjunction of triples.
    """
    matcher = Matcher(graph)
    image = matcher.part(expression).image()
    if image is None:
        raise MalformedFormula("the expression denotes every entity there is")
    if image and has_circle(expression):
        plan = _Plan(graph, to_triples(expression))
        image = {answer for answer in image if answer >= 0 and plan.witness(answer) is not None}
    return frozenset(map(matcher.name, image))


def first_answers(graph: KnowledgeGraph, formula: Sequence[Triple], limit: int) -> frozenset[str]:
    """Answers to `formula`, at most `limit` of them in no particular order. Raises MalformedFormula."""
    return frozenset(graph.entities[number] for number in islice(_one_by_one(graph, formula, set()), limit))


def exceeds(graph: KnowledgeGraph, formula: Sequence[Triple], answers: frozenset[str]) -> bool:
    """Whether `formula` has an answer outside `answers`; stops at the first. Raises MalformedFormula."""
    known = {number for answer in answers if (number := graph.entities.number(answer)) is not None}
    return next(_one_by_one(graph, formula, known), None) is not None


def _one_by_one(graph: KnowledgeGraph, formula: Sequence[Triple], known: set[int]) -> Iterator[int]:
    expression = from_triples(formula)
    plan = _Plan(graph, formula) if has_circle(expression) else None
    for number in Matcher(graph).part(expression).values():
        if number not in known:
            known.add(number)
            if plan is None or plan.witness(number) is not None:
                yield number


def witness(graph: KnowledgeGraph, formula: Sequence[Triple], answer: str) -> Values | None:
    """Values of all unknowns that satisfy every triple for target `answer`, the first in graph order; None if there are none."""
    return witnesses(graph, formula, [answer]).get(answer)


def witnesses(graph: KnowledgeGraph, formula: Sequence[Triple], answers: Iterable[str]) -> dict[str, Values]:
    """`witness` of each answer that has one, in alphabetical order."""
    plan, found = _Plan(graph, formula), {}
    for answer in sorted(answers):
        number = graph.entities.number(answer)
        values = None if number is None else plan.witness(number)
        if values is not None:
            found[answer] = {node: graph.entities[value] for node, value in values.items()}
    return found


@dataclass(frozen=True, slots=True)
class _Step:
    subject: str
    relation: int
    value: str
    left: tuple[int, ...] | None
    right: tuple[int, ...] | None


class _Plan:
    """Depth-first search for values of all unknowns; each triple is joined to a constant or an earlier unknown."""

    def __init__(self, graph: KnowledgeGraph, formula: Sequence[Triple]) -> None:
        self._graph, self._columns, self._formula = graph, graph.columns, formula
        self._dead_ends = 0
        self._steps = [self._step(triple) for triple in _in_order(formula)]

    def witness(self, answer: int) -> dict[str, int] | None:
        if any(step.relation < 0 for step in self._steps):
            return None
        return self._extend(0, {TARGET: answer})

    def _step(self, triple: Triple) -> _Step:
        subject, relation, value = triple
        number = self._graph.relation_number(relation)
        return _Step(subject, -1 if number is None else number, value, self._constant(subject), self._constant(value))

    def _constant(self, node: str) -> tuple[int, ...] | None:
        if not is_constant(node):
            return None
        numbers = (self._graph.entities.number(member) for member in members(node))
        return tuple(number for number in numbers if number is not None)

    def _extend(self, depth: int, values: dict[str, int]) -> dict[str, int] | None:
        if depth == len(self._steps):
            return values
        for bound in self._bindings(depth, values):
            if self._dead_ends > _DEAD_ENDS and not self._can_hold(bound):
                continue
            found = self._extend(depth + 1, {**values, **bound} if bound else values)
            if found is not None:
                return found
        self._dead_ends += 1
        return None

    def _can_hold(self, bound: dict[str, int]) -> bool:
        """Whether the expressions below the bound unknowns can hold. For trees this test is exact."""
        return all(node not in self._below or self._below[node].holds(number) for node, number in bound.items())

    @cached_property
    def _below(self) -> dict[str, EntitySet]:
        matcher = Matcher(self._graph)
        return {node: matcher.part(expression) for node, expression in definitions(self._formula).items()}

    def _bindings(self, depth: int, values: dict[str, int]) -> Iterator[dict[str, int]]:
        step = self._steps[depth]
        left, right = self._known(step.subject, step.left, values), self._known(step.value, step.right, values)
        if left is not None and right is not None:
            if any(self._columns.joined(here, step.relation, there) for here in left for there in right):
                yield {}
            return
        if left is None and right is None:
            left = tuple(sorted(self._columns.endpoints(step.relation), key=self._graph.entities.__getitem__))
        known, ends = (right, (step.value, step.subject)) if left is None else (left, (step.subject, step.value))
        for here in known or ():
            for there in dict.fromkeys(self._adjacent(here, depth, ends[1], values)):
                if step.subject != step.value or here == there:
                    yield {node: number for node, number in zip(ends, (here, there), strict=True) if not is_constant(node)}

    @staticmethod
    def _known(node: str, constant: tuple[int, ...] | None, values: dict[str, int]) -> tuple[int, ...] | None:
        return (values[node],) if node in values else constant

    def _adjacent(self, here: int, depth: int, unknown: str, values: dict[str, int]) -> list[int]:
        """Entities that the step leads to; if there are many, only those that the narrowest later step allows, in the same order."""
        relation = self._steps[depth].relation
        narrow = self._narrow(depth, unknown, values) if self._columns.spread(here, relation) > _LARGE else None
        if narrow is None:
            return self._columns.adjacent(here, relation)
        met = [there for there in narrow if self._columns.joined(here, relation, there)]
        return met if len(met) < 2 else [there for there in self._columns.adjacent(here, relation) if there in narrow]

    def _narrow(self, depth: int, unknown: str, values: dict[str, int]) -> set[int] | None:
        narrowest, size = None, _LARGE
        for step in self._steps[depth + 1 :]:
            if step.subject == step.value or unknown not in (step.subject, step.value):
                continue
            other, constant = (step.value, step.right) if step.subject == unknown else (step.subject, step.left)
            known = self._known(other, constant, values)
            spread = size if known is None else sum(self._columns.spread(here, step.relation) for here in known)
            if known is not None and spread < size:
                narrowest, size = (known, step.relation), spread
        if narrowest is None:
            return None
        return {there for here in narrowest[0] for there in self._columns.adjacent(here, narrowest[1])}


def _in_order(formula: Sequence[Triple]) -> list[Triple]:
    ordered: list[Triple] = []
    left, known = list(formula), {TARGET}
    while left:
        following = min(left, key=lambda triple: sum(not is_constant(n) and n not in known for n in (triple[0], triple[2])))
        left.remove(following)
        ordered.append(following)
        known.update(node for node in (following[0], following[2]) if not is_constant(node))
    return ordered
