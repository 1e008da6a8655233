"""Growing a question from a seed, layer by layer, and the two structures that the paper compares that with (WebShaper, section 4.2).

A seed is a target with a proven answer. *Layer-wise*, each leaf constant of the last layer gives way to a variable, defined by a
sub-question whose answer is exactly that constant; the answer never changes, no constant stays beside the target and none is joined with
another. *Sequential* replaces one constant a layer and leaves the others where they are: shortcuts. *Random* adds facts to nodes
drawn from all of them, as many as there are constants, so that some join constants with constants and some say what is known already.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from synth.formulas.algebra import Tree, spread
from synth.formulas.projections import solve
from synth.formulas.triples import TARGET, VARIABLE, constant, is_constant, members
from synth.questions.definitions import Constraint, Definer, Image
from synth.questions.paths import Anchor, Hop
from warehouse.records import Triple

MAX_TRIES = 12
"""Definitions of one constant that are tried, until one is needed in all its parts."""

MAX_FOLLOWED = 200
"""Members of a set by which it is seen whether there are more answers."""


class Structure(StrEnum):
    """How a question grows."""

    LAYERWISE = "layerwise"
    RANDOM = "random"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True)
class GrowthSpec:
    """What a question looks like: its layers, and the shares of unknowns with two constraints and of questions with an open constant.

    Where `checked`, a definition is taken only if the answers to the whole question grow without any one of its constraints: that they
    define their variable is not enough, for another branch may say as much. A variable's set stays the same when its constants give way,
    so what was needed once stays so.
    """

    structure: Structure
    layers: int
    intersections: float = 0.0
    unions: float = 0.0
    checked: bool = True


@dataclass(frozen=True, slots=True)
class GrownQuestion:
    """A question's formula, its only answer, and the value of each unknown by which it was grown."""

    formula: tuple[Triple, ...]
    answer: str
    values: dict[str, str]


def essence(formula: tuple[Triple, ...]) -> tuple[Triple, ...]:
    """The formula without the triples between constants, which are facts of the graph and narrow nothing."""
    return tuple(triple for triple in formula if not (is_constant(triple[0]) and is_constant(triple[2])))


def grow(definer: Definer, growth: GrowthSpec, rng: random.Random, wanted: int) -> Iterator[GrownQuestion]:
    """Questions of one kind, each proven to have its one answer; many more than `wanted`, or fewer where the graph has no more.

    The same answer can come twice; a caller that wants formulas once keeps account of them.
    """
    subjects = definer.graph.subjects
    starts = subjects if definer.allowed is None else [entity for entity in subjects if definer.permits(entity)]
    for _ in range((30 * wanted + 1_000) if len(starts) else 0):
        answer = _draw_answer(definer, rng.choice(starts), rng)
        grown = _Draft(definer, growth, rng).grow(answer) if answer else None
        if grown is not None and solve(definer.graph, essence(grown.formula)) == {grown.answer}:
            yield grown


def _draw_answer(definer: Definer, entity: str, rng: random.Random) -> str | None:
    """The entity itself, or something that a stated fact says of it."""
    objects = [fact.object for fact in definer.graph.about(entity) if fact.documents]
    if not objects or rng.random() < 0.5:
        return entity
    value = rng.choice(objects)
    return value if definer.permits(value) else None


class _Draft:
    """A question that is growing."""

    def __init__(self, definer: Definer, growth: GrowthSpec, rng: random.Random) -> None:
        self._definer, self._growth, self._rng = definer, growth, rng
        self._triples: list[Triple] = []
        self._values: dict[str, str] = {}
        self._met: set[str] = set()
        self._left = 0
        """Layers still to come."""

    def grow(self, answer: str) -> GrownQuestion | None:
        """The question with `answer`; None where a constant on the way has no definition."""
        self._left = self._growth.layers - 1
        leaves = self._define(TARGET, answer)
        while self._left and leaves:
            self._left -= 1
            match self._growth.structure:
                case Structure.LAYERWISE:
                    leaves = self._add_layer(leaves)
                case Structure.SEQUENTIAL:
                    leaves = self._expand(self._rng.choice(leaves))
                case Structure.RANDOM:
                    self._scatter()
        if not leaves:
            return None
        if self._rng.random() < self._growth.unions and not self._open(leaves):
            return None
        return GrownQuestion(tuple(self._triples), answer, dict(self._values))

    def _define(self, node: str, value: str) -> list[int]:
        """Add the constraints that define `node` as `value`; the numbers of their triples, none where there is no definition."""
        self._values[node] = value
        self._met.add(value)
        count = 2 if self._rng.random() < self._growth.intersections else 1
        for found in islice(self._definer.define((value,), count, self._met, self._rng, growing=self._left > 0), MAX_TRIES):
            before = list(self._triples)
            added = [self._attach(constraint, node) for constraint in found]
            if not self._growth.checked or all(self._is_needed(number) for number in added):
                self._met.update(constraint.other for constraint in found)
                return added
            self._triples = before
        return []

    def _is_needed(self, number: int) -> bool:
        """Whether there are more answers without a triple; without the only one about the target everything is an answer.

        All else has the values that it was grown by, so the wider set of one variable need only be followed up to the target. Of large
        sets a part is followed: an answer that it leads to is one more in any case.
        """
        below = spread(essence(tuple(self._triples)))
        above = {_other(owner, triple): (owner, triple) for owner, triples in below.items() for triple, is_new in triples if is_new}
        gone = self._triples[number]
        node = next(owner for owner, triples in below.items() if any(triple == gone for triple, _ in triples))
        image = self._rest(node, gone, below)
        while node != TARGET:
            node, gone = above[node]
            image = self._step(image, gone[1], self._rest(node, gone, below))
        return image is None or any(entity != self._values[TARGET] for entity in image)

    def _rest(self, node: str, gone: Triple, below: Tree) -> Image | None:
        """What the other triples below a node let it be."""
        others = [(triple[1], _other(node, triple)) for triple, _ in below[node] if triple != gone]
        return self._definer.meet([self._definer.joined(relation, _value(other, self._values)) for relation, other in others])

    def _step(self, image: Image | None, relation: str, rest: Image | None) -> Image | None:
        """What is joined with a member of `image` and in `rest`."""
        joined = self._definer.joined
        if rest is not None:
            some = islice(rest, MAX_FOLLOWED)
            return {e: None for e in some if any(image is None or other in image for other in joined(relation, e))}
        source = self._definer.graph.values(relation) if image is None else image
        return dict.fromkeys(islice((other for entity in source for other in joined(relation, entity)), MAX_FOLLOWED))

    def _attach(self, constraint: Constraint, node: str) -> int:
        self._triples.append(constraint.triple(node))
        return len(self._triples) - 1

    def _add_layer(self, leaves: list[int]) -> list[int]:
        """Every leaf gives way; nothing where one of them cannot."""
        following: list[int] = []
        for leaf in leaves:
            added = self._expand(leaf)
            if not added:
                return []
            following += added
        return following

    def _expand(self, leaf: int) -> list[int]:
        """The constant of one triple gives way to a variable and its definition, wherever else it stands."""
        subject, _, value = self._triples[leaf]
        gone = subject if is_constant(subject) else value
        (text,) = members(gone)
        if not self._definer.permits(text):
            return []
        node = f"{VARIABLE}X{len(self._values)}"
        self._triples = [(node if s == gone else s, relation, node if o == gone else o) for s, relation, o in self._triples]
        return self._define(node, text)

    def _scatter(self) -> None:
        """As many facts as there are constants, each about a node drawn from all."""
        for _ in range(len(self._leaves())):
            node = self._rng.choice([*self._values, *self._constants()])
            if is_constant(node) and self._rng.random() < 0.5:
                self._expand_somewhere(node)
                continue
            known = self._definer.constraints(self._values.get(node) or members(node)[0], self._rng)
            fresh = next((constraint for constraint in known if constraint.other not in self._met), None)
            if fresh is not None:
                self._attach(fresh, node)
                self._met.add(fresh.other)

    def _expand_somewhere(self, node: str) -> None:
        """A constant of a constraint gives way, if it has a definition; else it stays."""
        leaves = [leaf for leaf in self._leaves() if node in self._triples[leaf]]
        if not leaves:
            return
        before, known = list(self._triples), dict(self._values)
        if not self._expand(leaves[0]):
            self._triples, self._values = before, known

    def _leaves(self) -> list[int]:
        """The triples that join an unknown with a constant."""
        return [n for n, (subject, _, value) in enumerate(self._triples) if is_constant(subject) != is_constant(value)]

    def _constants(self) -> list[str]:
        return [node for subject, _, value in self._triples for node in (subject, value) if is_constant(node)]

    def _open(self, leaves: list[int]) -> bool:
        """Leave one of the values in `leaves` open between itself and another of its relation."""
        objects = [leaf for leaf in leaves if is_constant(self._triples[leaf][2])]
        if not objects:
            return False
        leaf = self._rng.choice(objects)
        subject, relation, value = self._triples[leaf]
        (text,) = members(value)
        other = str(int(text) + 1) if text.isdecimal() else self._rng.choice(self._definer.graph.values(relation))
        if other in self._met:
            return False
        self._triples[leaf] = (subject, relation, constant(text, other))
        return True


def readings(grown: GrownQuestion) -> tuple[Hop, ...]:
    """The documents that answer a question, from the leaves to the target: each found by a name, or by all that is known of its entity.

    A value is read in the document of what it is a fact of; an entity that is known by its own facts is found by them together.
    """
    below = spread(essence(grown.formula))
    hops: list[Hop] = []
    anchors = {node: _anchors(node, triples, grown.values) for node, triples in below.items()}
    for node, triples in reversed(below.items()):
        for (subject, relation, value), _ in triples:
            if value == node:
                hops.append(Hop(_value(subject, grown.values), relation, grown.values[node], anchors.get(subject, ())))
        if anchors[node] and not _is_read_above(node, below):
            hops.append(Hop(grown.values[node], None, grown.values[node], anchors[node]))
    return tuple(dict.fromkeys(hops))


def _is_read_above(node: str, below: Tree) -> bool:
    """Whether the node above reads a value in the document of this one."""
    return any(is_new and triple[0] == node for owner, triples in below.items() if owner != node for triple, is_new in triples)


def _anchors(node: str, triples: list[tuple[Triple, bool]], values: dict[str, str]) -> tuple[Anchor, ...]:
    known = [(relation, value) for (subject, relation, value), _ in triples if subject == node]
    return tuple(
        Anchor(relation, members(value)) if is_constant(value) else Anchor(relation, (values[value],), linked=True)
        for relation, value in known
    )


def _other(node: str, triple: Triple) -> str:
    """The end of a triple that is not `node`."""
    return triple[2] if triple[0] == node else triple[0]


def _value(node: str, values: dict[str, str]) -> str:
    return members(node)[0] if is_constant(node) else values[node]
