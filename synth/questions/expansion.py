"""Grow questions from a seed, layer by layer: WebShaper's layer-wise structure and the two it is compared with (section 4.2).

A seed is a target with a proven answer. *Layer-wise* turns each leaf constant of the last layer into a variable, defined by a sub-question
whose only answer is that constant; the answer never changes, no constant stays adjacent to the target or to another constant. *Sequential*
replaces one constant per layer and leaves the others as shortcuts. *Random* adds as many facts as there are constants to random nodes, so
some join constants and some are redundant.

A definition is one or two constraints (documented facts with the entity left out) that exactly the given set satisfies; of two, both are
needed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, combinations, islice

from synth.formulas.projections import solve
from synth.formulas.triples import TARGET, UNION, VARIABLE, Tree, constant, is_constant, members, nodes_of, spread
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import Anchor, Hop
from warehouse.records import Triple

MAX_SUBJECTS = 16
"""Subjects sampled per shared value, which may have thousands (a genre)."""

Image = dict[str, None]
"""Ordered set of entities, so that draws are reproducible across processes."""

MAX_CONSTRAINTS = 24
"""Maximum constraints per entity whose images are compared."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """`relation` joins the entity with `other`, which is the fact's subject if `forward`."""

    relation: str
    other: str
    forward: bool

    def triple(self, node: str, other: str | None = None) -> Triple:
        """The constraint on `node`; `other` replaces the constant."""
        known = other or constant(self.other)
        return (known, self.relation, node) if self.forward else (node, self.relation, known)


@dataclass(frozen=True, slots=True)
class Definer:
    """Finds definitions among `allowed` entities (None: all), from documented facts only."""

    graph: KnowledgeGraph
    allowed: Callable[[str], bool] | None = None
    _images: dict[tuple[str, str], Image] = field(default_factory=dict)
    _known_subjects: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def define(
        self, members: Collection[str], wanted: int, met: Collection[str], rng: random.Random, growing: bool = False
    ) -> Iterator[tuple[Constraint, ...]]:
        """Constraint sets that exactly `members` satisfy, none about an entity in `met`, in random order.

        Args:
            wanted: one or two constraints; sets of the other size come later.
            growing: only constraints on entities that can be defined further.
        """
        goal = frozenset(members)
        known = [c for c in self.constraints(min(goal), rng) if c.other not in met and c.other not in goal and goal <= self.image(c).keys()]
        met = {*met, *goal}
        known = [c for c in known if not growing or self._has_more(c.other, met)][:MAX_CONSTRAINTS]
        exact = [(c,) for c in known if len(self.image(c)) == len(goal)]
        wide = [c for c in known if len(self.image(c)) > len(goal)]
        pairs = (pair for pair in combinations(wide, 2) if len(self.meet([self.image(c) for c in pair]) or ()) == len(goal))
        return chain(exact, pairs) if wanted == 1 else chain(pairs, exact)

    def constraints(self, entity: str, rng: random.Random) -> list[Constraint]:
        """Constraints from documented facts about `entity`, shuffled."""
        known = [each for each in dict.fromkeys(self._stated(entity, rng)) if UNION not in each.other]  # constants cannot contain it
        rng.shuffle(known)
        return known

    def image(self, constraint: Constraint) -> Image:
        return self.joined(constraint.relation, constraint.other)

    def joined(self, relation: str, entity: str) -> Image:
        """Entities that `relation` joins with `entity`."""
        key = (relation, entity)
        if key not in self._images:
            self._images[key] = dict.fromkeys(self.graph.adjacent(relation, entity))
        return self._images[key]

    @staticmethod
    def meet(images: Sequence[Image]) -> Image | None:
        """Intersection, in the order of the smallest image; None (everything) for no images."""
        if not images:
            return None
        first, *others = sorted(images, key=len)
        return {entity: None for entity in first if all(entity in other for other in others)}

    def permits(self, entity: str) -> bool:
        return self.allowed is None or self.allowed(entity)

    def _has_more(self, entity: str, met: set[str]) -> bool:
        known = (other for relation in self.graph.relations for other in islice(self.joined(relation, entity), len(met) + 1))
        return self.permits(entity) and any(other not in met for other in known)

    def _stated(self, entity: str, rng: random.Random) -> Iterator[Constraint]:
        for fact in self.graph.about(entity):
            if fact.documents and fact.object != entity and (self.permits(fact.object) or not self.graph.about(fact.object)):
                yield Constraint(fact.relation, fact.object, forward=False)
        for relation in self.graph.relations:
            subjects = self._subjects(relation, entity)
            for subject in subjects if len(subjects) <= MAX_SUBJECTS else rng.sample(subjects, MAX_SUBJECTS):
                if subject != entity and self.permits(subject) and self.graph.stating(subject, relation, entity):
                    yield Constraint(relation, subject, forward=True)

    def _subjects(self, relation: str, entity: str) -> list[str]:
        key = (relation, entity)
        if key not in self._known_subjects:
            self._known_subjects[key] = self.graph.subjects_of(relation, entity)
        return self._known_subjects[key]


MAX_TRIES = 12
"""Maximum definitions of a constant tried until all of their constraints are needed."""

MAX_FOLLOWED = 200
"""Maximum members of a set followed in the search for further answers."""


class Structure(StrEnum):
    LAYERWISE = "layerwise"
    RANDOM = "random"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True)
class GrowthSpec:
    """Number of layers, and shares of unknowns with two constraints and of questions with an open constant.

    If `checked`, each constraint of a definition must be needed for the whole question, since another branch may imply it. Later expansions
    do not change a variable's set, so a needed constraint stays needed.
    """

    structure: Structure
    layers: int
    intersections: float = 0.0
    unions: float = 0.0
    checked: bool = True


@dataclass(frozen=True, slots=True)
class GrownQuestion:
    """Formula of a question, its only answer, and the values of its unknowns."""

    formula: tuple[Triple, ...]
    answer: str
    values: dict[str, str]


def essence(formula: tuple[Triple, ...]) -> tuple[Triple, ...]:
    """Formula without triples between constants, which constrain nothing."""
    return tuple(triple for triple in formula if not (is_constant(triple[0]) and is_constant(triple[2])))


def grow(definer: Definer, growth: GrowthSpec, rng: random.Random, wanted: int) -> Iterator[GrownQuestion]:
    """Yield questions with exactly one answer each, possibly repeated; many more than `wanted` unless the graph runs out."""
    subjects = definer.graph.subjects
    starts = subjects if definer.allowed is None else [entity for entity in subjects if definer.permits(entity)]
    for _ in range((30 * wanted + 1_000) if len(starts) else 0):
        answer = _draw_answer(definer, rng.choice(starts), rng)
        grown = _Draft(definer, growth, rng).grow(answer) if answer else None
        if grown is not None and solve(definer.graph, essence(grown.formula)) == {grown.answer}:
            yield grown


def _draw_answer(definer: Definer, entity: str, rng: random.Random) -> str | None:
    objects = [fact.object for fact in definer.graph.about(entity) if fact.documents]
    if not objects or rng.random() < 0.5:
        return entity
    value = rng.choice(objects)
    return value if definer.permits(value) else None


class _Draft:
    def __init__(self, definer: Definer, growth: GrowthSpec, rng: random.Random) -> None:
        self._definer, self._growth, self._rng = definer, growth, rng
        self._triples: list[Triple] = []
        self._values: dict[str, str] = {}
        self._met: set[str] = set()
        self._left = 0

    def grow(self, answer: str) -> GrownQuestion | None:
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
        """Whether removing a triple adds answers.

        All other unknowns keep their values, so the widened set of one variable is followed up to the target; large sets only in part.
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
        others = [(triple[1], _other(node, triple)) for triple, _ in below[node] if triple != gone]
        return self._definer.meet([self._definer.joined(relation, _value(other, self._values)) for relation, other in others])

    def _step(self, image: Image | None, relation: str, rest: Image | None) -> Image | None:
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
        following: list[int] = []
        for leaf in leaves:
            added = self._expand(leaf)
            if not added:
                return []
            following += added
        return following

    def _expand(self, leaf: int) -> list[int]:
        subject, _, value = self._triples[leaf]
        gone = subject if is_constant(subject) else value
        (text,) = members(gone)
        if not self._definer.permits(text):
            return []
        node = f"{VARIABLE}X{len(self._values)}"
        self._triples = [(node if s == gone else s, relation, node if o == gone else o) for s, relation, o in self._triples]
        return self._define(node, text)

    def _scatter(self) -> None:
        for _ in range(len(self._leaves())):
            node = self._rng.choice([*self._values, *filter(is_constant, nodes_of(self._triples))])
            if is_constant(node) and self._rng.random() < 0.5:
                self._expand_somewhere(node)
                continue
            known = self._definer.constraints(self._values.get(node) or members(node)[0], self._rng)
            fresh = next((constraint for constraint in known if constraint.other not in self._met), None)
            if fresh is not None:
                self._attach(fresh, node)
                self._met.add(fresh.other)

    def _expand_somewhere(self, node: str) -> None:
        leaves = [leaf for leaf in self._leaves() if node in self._triples[leaf]]
        if not leaves:
            return
        before, known = list(self._triples), dict(self._values)
        if not self._expand(leaves[0]):
            self._triples, self._values = before, known

    def _leaves(self) -> list[int]:
        return [n for n, (subject, _, value) in enumerate(self._triples) if is_constant(subject) != is_constant(value)]

    def _open(self, leaves: list[int]) -> bool:
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
    """Documents that answer a question, from the leaves to the target.

    A value is read in the document of its fact's subject; an entity known by its own facts is found by all of them.
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
    return any(is_new and triple[0] == node for owner, triples in below.items() if owner != node for triple, is_new in triples)


def _anchors(node: str, triples: list[tuple[Triple, bool]], values: dict[str, str]) -> tuple[Anchor, ...]:
    known = [(relation, value) for (subject, relation, value), _ in triples if subject == node]
    return tuple(
        Anchor(relation, members(value)) if is_constant(value) else Anchor(relation, (values[value],), linked=True)
        for relation, value in known
    )


def _other(node: str, triple: Triple) -> str:
    return triple[2] if triple[0] == node else triple[0]


def _value(node: str, values: dict[str, str]) -> str:
    return members(node)[0] if is_constant(node) else values[node]
