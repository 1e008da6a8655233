"""Sub-questions that define an entity, or a set of them: constraints whose answer in the whole graph is exactly that set.

A constraint is a stated fact about an entity with the entity left out: what "director of Dawn" says of Ann. One that fits nothing else
defines alone; two define together where each alone lets more in, so that both are needed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, islice

from synth.formulas.triples import UNION, constant
from synth.graph.knowledge_graph import KnowledgeGraph
from warehouse.records import Triple

MAX_SUBJECTS = 16
"""Entities drawn of all those that share a value (a genre has thousands): each is a way to define it, and a few suffice."""

Image = dict[str, None]
"""A set of entities that keeps an order, so that what is drawn from it is the same in every process."""

MAX_CONSTRAINTS = 24
"""Constraints of one entity whose images are compared with each other."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One thing known of an entity: that `relation` joins it with `other`, which is the subject of the fact where `forward`."""

    relation: str
    other: str
    forward: bool

    def triple(self, node: str, other: str | None = None) -> Triple:
        """The constraint on `node`; `other` stands for what is known, by default as a constant."""
        known = other or constant(self.other)
        return (known, self.relation, node) if self.forward else (node, self.relation, known)


@dataclass(frozen=True, slots=True)
class Definer:
    """Finds definitions in a graph, by stated facts alone, among the entities that are `allowed`."""

    graph: KnowledgeGraph
    allowed: Callable[[str], bool] | None = None
    _images: dict[tuple[str, str], Image] = field(default_factory=dict)
    _known_subjects: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def define(
        self, members: Collection[str], wanted: int, met: Collection[str], rng: random.Random, growing: bool = False
    ) -> Iterator[tuple[Constraint, ...]]:
        """Sets of constraints that exactly `members` satisfy, none of them about what was `met`, in random order.

        Args:
            wanted: one or two constraints; those of the other number come after them.
            growing: take only constraints by something of which more is known, so that it can give way in turn.
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
        """What stated facts say of `entity`, in random order."""
        known = [each for each in dict.fromkeys(self._stated(entity, rng)) if UNION not in each.other]  # a constant could not name it
        rng.shuffle(known)
        return known

    def image(self, constraint: Constraint) -> Image:
        """Everything that satisfies a constraint, in either direction."""
        return self.joined(constraint.relation, constraint.other)

    def joined(self, relation: str, entity: str) -> Image:
        """Everything that `relation` joins with `entity`."""
        key = (relation, entity)
        if key not in self._images:
            self._images[key] = dict.fromkeys(self.graph.adjacent(relation, entity))
        return self._images[key]

    @staticmethod
    def meet(images: Sequence[Image]) -> Image | None:
        """What stands in all the images, in the order of the smallest; None, which is everything, where there are none."""
        if not images:
            return None
        first, *others = sorted(images, key=len)
        return {entity: None for entity in first if all(entity in other for other in others)}

    def permits(self, entity: str) -> bool:
        """Whether an entity may lie on the way."""
        return self.allowed is None or self.allowed(entity)

    def _has_more(self, entity: str, met: set[str]) -> bool:
        """Whether anything but what was met is joined with an allowed entity."""
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
        """The subjects of a relation of which `entity` is the object; many ask for those of a genre or a year again and again."""
        key = (relation, entity)
        if key not in self._known_subjects:
            self._known_subjects[key] = self.graph.subjects_of(relation, entity)
        return self._known_subjects[key]
