"""The sets that expressions denote, in the numbers of a graph's columns, each evaluated by the cheapest of three ways.

The image of an expression is built from its smallest part; of the larger parts it is only asked whether they hold a candidate. Where it
is enough to know whether there is a further answer, candidates come one by one and the first that holds ends the search. So a genre that
ten thousand films share costs little beside an actor, and the cost of a question hardly grows with the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Protocol

from synth.formulas.algebra import Constant, Expression, Intersection, Projection, Variable
from synth.graph.columns import FactColumns
from synth.graph.knowledge_graph import KnowledgeGraph

_WIDER = 4
"""Candidates are tested one by one where the image of the next part would be this many times as large."""


class EntitySet(Protocol):
    """An expression over one graph; each use of a variable is taken for itself, an undefined one for any entity."""

    size: int
    """About how many values it has: exact for the neighbours of constants, else a cheap guess."""

    def image(self) -> set[int] | None:
        """Everything that it denotes; None stands for every entity."""

    def values(self) -> Iterator[int]:
        """What it denotes, one after the other, some of it again and again; for bounded parts."""

    def holds(self, value: int) -> bool:
        """Whether it denotes `value`."""


class Matcher:
    """Expressions in the numbers of one graph. Constants that the graph does not know get numbers below zero."""

    __slots__ = ("_graph", "_unknown")

    def __init__(self, graph: KnowledgeGraph) -> None:
        self._graph = graph
        self._unknown: list[str] = []

    def name(self, number: int) -> str:
        """The name of a number that a part of this matcher gave."""
        return self._graph.entities[number] if number >= 0 else self._unknown[-1 - number]

    def part(self, expression: Expression) -> EntitySet:
        """The expression in numbers."""
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
    """What a relation joins with constants."""

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
            if 8 * self._asked < self.size and not self._is_held():  # a few questions cost less than the image, many cost more
                return value >= 0 and any(self._columns.joined(value, self._relation, constant) for constant in self._constants)
            self._image = self._graph.image(self._constants[0], self._relation) if len(self._constants) == 1 else self.image()
        return value in self._image

    def _is_held(self) -> bool:
        return len(self._constants) == 1 and self._graph.holds_image(self._constants[0], self._relation)


class _Projected:
    """What a relation joins with what another part denotes."""

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
    """Everything that takes part in a relation."""

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
    """What all parts denote."""

    __slots__ = ("_parts", "size")

    def __init__(self, parts: Sequence[EntitySet]) -> None:
        self._parts = sorted(parts, key=_size)
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
    """What any of the parts denotes."""

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


def _size(part: EntitySet) -> int:
    return part.size
