"""The one evaluator of the algebra, over a knowledge graph: exactly the entities that the graph proves to be answers.

A formula whose unknowns form a tree is WebShaper's own recursion T = R1(T1) ∩ … ∩ Rk(Tk), evaluated from the leaves to the target.
A formula with a circle is first relaxed to a tree, which gives a superset, and each candidate is then proved by a search for
values of all unknowns. Facts hold in both directions, as the knowledge projection says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from synth.formulas.algebra import Expression, definitions, from_triples, has_circle, to_triples
from synth.formulas.entity_sets import EntitySet, Matcher
from synth.formulas.triples import TARGET, MalformedFormula, is_constant, members
from synth.graph.knowledge_graph import KnowledgeGraph
from warehouse.records import Triple

Values = dict[str, str]
"""An unknown's value, by its node."""
_LARGE = 64
"""Neighbours from which on it is worth asking the other constraints first."""
_DEAD_ENDS = 64
"""Dead ends from which on it is worth asking, for each value, whether what hangs below its unknown can hold at all."""


def solve(graph: KnowledgeGraph, formula: Sequence[Triple]) -> frozenset[str]:
    """The answers to `formula`: every value of the target for which all other unknowns have values too.

    Raises:
        MalformedFormula: where `validate` finds a problem.
    """
    return evaluate(graph, from_triples(formula))


def evaluate(graph: KnowledgeGraph, expression: Expression) -> frozenset[str]:
    """The entities that `expression` denotes in `graph`.

    Raises:
        MalformedFormula: nothing bounds the expression, or a variable stands twice in one that is no conjunction of triples.
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
    """The answers to `formula`, or any `limit` of them where there are more: a formula with millions of answers then costs little.

    Raises:
        MalformedFormula: where `validate` finds a problem.
    """
    return frozenset(graph.entities[number] for number in islice(_one_by_one(graph, formula, set()), limit))


def exceeds(graph: KnowledgeGraph, formula: Sequence[Triple], answers: frozenset[str]) -> bool:
    """Whether `formula` has an answer besides `answers`; it stops at the first.

    Raises:
        MalformedFormula: where `validate` finds a problem.
    """
    known = {number for answer in answers if (number := graph.entities.number(answer)) is not None}
    return next(_one_by_one(graph, formula, known), None) is not None


def _one_by_one(graph: KnowledgeGraph, formula: Sequence[Triple], known: set[int]) -> Iterator[int]:
    """The answers besides those known, each once; `known` grows by what has been looked at."""
    expression = from_triples(formula)
    plan = _Plan(graph, formula) if has_circle(expression) else None
    for number in Matcher(graph).part(expression).values():
        if number not in known:
            known.add(number)
            if plan is None or plan.witness(number) is not None:
                yield number


def witness(graph: KnowledgeGraph, formula: Sequence[Triple], answer: str) -> Values | None:
    """Values of all unknowns under which every triple holds and the target is `answer`; None where there are none.

    Of several the first in the order of the graph's facts.
    """
    return witnesses(graph, formula, [answer]).get(answer)


def witnesses(graph: KnowledgeGraph, formula: Sequence[Triple], answers: Iterable[str]) -> dict[str, Values]:
    """The `witness` of each of `answers` that has one, in the order of the alphabet."""
    plan, found = _Plan(graph, formula), {}
    for answer in sorted(answers):
        number = graph.entities.number(answer)
        values = None if number is None else plan.witness(number)
        if values is not None:
            found[answer] = {node: graph.entities[value] for node, value in values.items()}
    return found


@dataclass(frozen=True, slots=True)
class _Step:
    """One triple in numbers; `left` and `right` are what its ends can be, None for an unknown."""

    subject: str
    relation: int
    value: str
    left: tuple[int, ...] | None
    right: tuple[int, ...] | None


class _Plan:
    """A search for values of all unknowns, the triples in an order in which each has a constant or an unknown of an earlier one."""

    def __init__(self, graph: KnowledgeGraph, formula: Sequence[Triple]) -> None:
        self._graph, self._columns, self._formula = graph, graph.columns, formula
        self._dead_ends = 0
        self._steps = [self._step(triple) for triple in _in_order(formula)]

    def witness(self, answer: int) -> dict[str, int] | None:
        """Values of all unknowns under which the target is `answer`, the first in the order of the facts."""
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
        """Values for the unknowns of the steps from `depth` on, on top of those given, by depth-first search."""
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
        """Whether what hangs below each unknown can hold for its value. In a tree one that can leads on, so no way is tried in vain."""
        return all(node not in self._below or self._below[node].holds(number) for node, number in bound.items())

    @cached_property
    def _below(self) -> dict[str, EntitySet]:
        matcher = Matcher(self._graph)
        return {node: matcher.part(expression) for node, expression in definitions(self._formula).items()}

    def _bindings(self, depth: int, values: dict[str, int]) -> Iterator[dict[str, int]]:
        """What a step can add to the values: nothing where both of its ends are known, and nothing at all where it does not hold."""
        step = self._steps[depth]
        left, right = self._known(step.subject, step.left, values), self._known(step.value, step.right, values)
        if left is not None and right is not None:
            if any(self._columns.joined(here, step.relation, there) for here in left for there in right):
                yield {}
            return
        if left is None and right is None:
            left = self._endpoints(step.relation)
        known, ends = (right, (step.value, step.subject)) if left is None else (left, (step.subject, step.value))
        for here in known or ():
            for there in dict.fromkeys(self._adjacent(here, depth, ends[1], values)):
                if step.subject != step.value or here == there:
                    yield {node: number for node, number in zip(ends, (here, there), strict=True) if not is_constant(node)}

    @staticmethod
    def _known(node: str, constant: tuple[int, ...] | None, values: dict[str, int]) -> tuple[int, ...] | None:
        return (values[node],) if node in values else constant

    def _adjacent(self, here: int, depth: int, unknown: str, values: dict[str, int]) -> list[int]:
        """What the step at `depth` leads to from `here`; of a large number only what the narrowest later step allows, in the same order."""
        relation = self._steps[depth].relation
        narrow = self._narrow(depth, unknown, values) if self._columns.spread(here, relation) > _LARGE else None
        if narrow is None:
            return self._columns.adjacent(here, relation)
        met = [there for there in narrow if self._columns.joined(here, relation, there)]
        return met if len(met) < 2 else [there for there in self._columns.adjacent(here, relation) if there in narrow]

    def _narrow(self, depth: int, unknown: str, values: dict[str, int]) -> set[int] | None:
        """The smallest set that a step after `depth` alone leaves to `unknown`; None where there is none that is small."""
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

    def _endpoints(self, relation: int) -> tuple[int, ...]:
        """Everything that takes part in a relation, by name."""
        return tuple(sorted(self._columns.endpoints(relation), key=self._graph.entities.__getitem__))


def _in_order(formula: Sequence[Triple]) -> list[Triple]:
    """The triples in an order in which each has a constant or an unknown of an earlier one, starting from the target."""
    ordered: list[Triple] = []
    left, known = list(formula), {TARGET}
    while left:
        following = min(left, key=lambda triple: sum(not is_constant(n) and n not in known for n in (triple[0], triple[2])))
        left.remove(following)
        ordered.append(following)
        known.update(node for node in (following[0], following[2]) if not is_constant(node))
    return ordered
