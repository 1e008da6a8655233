"""Differently styled questions over slices of what a graph's documents say (AgentFounder, arXiv 2509.13310, section 2.2).

A slice is what the documents say about the entities along a path; diversity comes from the questions over it. There are a *factual*
question (one statement), a *multi-hop* one (the whole path), a *numerical* one (a count, a difference of two numbers, or how many share a
value) and a *synthesis* (several statements about one or two entities). Each has its answer and the statements that it rests on; where a
slice does not carry a style, it has none of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from synth.fas.memory import Statement, statements_of
from synth.formulas.projections import solve
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import Hop, Route, formula_of
from synth.questions.walks import MAX_SHARING
from synth.questions.wording import Phrasing, spoken, word_question
from warehouse.records import Fact, Triple


def required_knowledge(graph: KnowledgeGraph, path: Route) -> tuple[Statement, ...]:
    """The statements that a question along `path` rests on, hop by hop; of a union those that hold."""
    return tuple(statement for hop in path for statement in statements_of(graph, _needed(graph, hop)))


def _needed(graph: KnowledgeGraph, hop: Hop) -> list[Fact]:
    wanted = {(hop.relation, hop.value), *((anchor.relation, value) for anchor in hop.anchors for value in anchor.values)}
    return [fact for fact in graph.about(hop.entity) if (fact.relation, fact.object) in wanted]


class QuestionStyle(StrEnum):
    """What a question asks of a slice."""

    FACTUAL = "factual"
    MULTI_HOP = "multi_hop"
    NUMERICAL = "numerical"
    SYNTHESIS = "synthesis"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to find out, in order, and the first action: a call of `tool` with `query`."""

    relations: tuple[str, ...]
    query: str
    tool: str = "search"

    @property
    def thought(self) -> str:
        """The plan as the policy thinks it."""
        return f"plan: {', '.join(self.relations)}"


def propose(path: Route) -> Plan:
    """The oracle's plan for a question along `path`."""
    found_by = [" and ".join(spoken(anchor.relation) for anchor in hop.anchors) for hop in path]
    relations = [r for hop, found in zip(path, found_by, strict=True) for r in (found, spoken(hop.relation or "")) if r]
    return Plan(tuple(relations), path[0].query)


@dataclass(frozen=True, slots=True)
class SliceQuestion:
    """A question over a slice, with what it rests on and the oracle's plan.

    `secret` is what the first search must not hold: the answer, or None where that is a number. `unique` says whether the graph
    gives the question this answer and no other.
    """

    style: QuestionStyle | None
    question: str
    answer: str
    required: tuple[Statement, ...]
    plan: Plan
    secret: str | None
    unique: bool
    formula: tuple[Triple, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """The entities along a path and what is needed to ask about them."""

    graph: KnowledgeGraph
    path: Route
    phrasing: Phrasing
    variety: int
    rng: random.Random

    def stated(self, entity: str) -> list[Fact]:
        """The stated facts of an entity."""
        return [fact for fact in self.graph.about(entity) if fact.documents]

    def single(self, entity: str) -> list[Fact]:
        """Those that are the only ones of their relation."""
        return [fact for fact in self.stated(entity) if len(self.graph.objects(entity, fact.relation)) == 1]

    @property
    def entities(self) -> list[str]:
        """The entities whose documents the path reads."""
        return list(dict.fromkeys(hop.entity for hop in self.path))

    def word(self, relation: str) -> str:
        """How a question speaks of a relation."""
        return self.phrasing.word(relation) if self.variety == 1 else spoken(relation)


def ask_along(slice_: Slice, path: Route, style: QuestionStyle | None = None) -> SliceQuestion:
    """The question that a path of the slice asks."""
    formula = formula_of(path)
    question = word_question(formula, slice_.phrasing, slice_.variety, slice_.rng)
    answer = path[-1].value
    unique = len(solve(slice_.graph, formula)) == 1
    required = required_knowledge(slice_.graph, path)
    return SliceQuestion(style, question, answer, required, propose(path), answer, unique, formula)


def ask(slice_: Slice, style: QuestionStyle) -> SliceQuestion | None:
    """A question of that style over the slice; None where the slice does not carry one."""
    return _ASK[style](slice_)


def _factual(slice_: Slice) -> SliceQuestion | None:
    facts = [fact for entity in slice_.entities for fact in slice_.single(entity)]
    if not facts:
        return None
    fact = slice_.rng.choice(facts)
    return ask_along(slice_, (Hop(fact.subject, fact.relation, fact.object),), QuestionStyle.FACTUAL)


def _multi_hop(slice_: Slice) -> SliceQuestion | None:
    return ask_along(slice_, slice_.path, QuestionStyle.MULTI_HOP) if len(slice_.path) > 1 else None


def _numerical(slice_: Slice) -> SliceQuestion | None:
    for kind in slice_.rng.sample((_counts, _differences, _sharings), 3):
        found = list(kind(slice_))
        if found:
            return slice_.rng.choice(found)
    return None


def _counts(slice_: Slice) -> Iterator[SliceQuestion]:
    """How many objects a relation of an entity has, all of them stated."""
    for entity in slice_.entities:
        stated = slice_.stated(entity)
        for relation in dict.fromkeys(fact.relation for fact in stated):
            facts = [fact for fact in stated if fact.relation == relation]
            if len(facts) > 1 and len(facts) == len(slice_.graph.objects(entity, relation)):
                word = slice_.word(relation)
                question = (
                    f"number of {word} of {entity}?" if slice_.variety == 1 else f"How many different values has the {word} of {entity}?"
                )
                yield _number(slice_, question, len(facts), facts, Plan((spoken(relation), "count"), entity))


def _differences(slice_: Slice) -> Iterator[SliceQuestion]:
    """By how much two entities differ in a relation whose values are whole numbers."""
    numbers = [fact for entity in slice_.entities for fact in slice_.single(entity) if fact.object.isdecimal()]
    for place, one in enumerate(numbers):
        for other in numbers[place + 1 :]:
            if one.relation == other.relation and one.subject != other.subject:
                question = f"How far apart are the {slice_.word(one.relation)} of {one.subject} and of {other.subject}?"
                value = abs(int(one.object) - int(other.object))
                yield _number(slice_, question, value, [one, other], Plan((spoken(one.relation), "difference"), one.subject))


def _sharings(slice_: Slice) -> Iterator[SliceQuestion]:
    """How many entities have a value of the slice, all of them stated to have it."""
    for entity in slice_.entities:
        for fact in slice_.stated(entity):
            sharing = slice_.graph.subjects_of(fact.relation, fact.object)
            if not 1 < len(sharing) <= MAX_SHARING:
                continue
            facts = [f for other in sharing for f in slice_.stated(other) if (f.relation, f.object) == (fact.relation, fact.object)]
            if len(facts) == len(sharing):
                question = f"How many have {fact.object} as {slice_.word(fact.relation)}?"
                query = f"{spoken(fact.relation)} {fact.object}"
                yield _number(slice_, question, len(facts), facts, Plan((spoken(fact.relation), "count"), query))


def _number(slice_: Slice, question: str, value: int, facts: Sequence[Fact], plan: Plan) -> SliceQuestion:
    return SliceQuestion(QuestionStyle.NUMERICAL, question, str(value), statements_of(slice_.graph, facts), plan, None, True)


def _synthesis(slice_: Slice) -> SliceQuestion | None:
    rich = [(entity, facts) for entity in slice_.entities if len(facts := slice_.single(entity)) > 1]
    if not rich:
        return None
    chosen = slice_.rng.sample(rich, min(2, len(rich)))
    picked = [(entity, slice_.rng.sample(facts, 2)) for entity, facts in chosen]
    wanted = [f"{' and '.join(slice_.word(fact.relation) for fact in facts)} of {entity}" for entity, facts in picked]
    head = f"Compare {picked[0][0]} with {picked[1][0]}" if len(picked) > 1 else f"Sum up {picked[0][0]}"
    facts = [fact for _, found in picked for fact in found]
    answer = "; ".join(fact.object for fact in facts)
    plan = Plan(tuple(dict.fromkeys(spoken(fact.relation) for fact in facts)), picked[0][0])
    question = f"{head}: {', '.join(wanted)}?"
    return SliceQuestion(QuestionStyle.SYNTHESIS, question, answer, statements_of(slice_.graph, facts), plan, answer, True)


_ASK: dict[QuestionStyle, Callable[[Slice], SliceQuestion | None]] = {
    QuestionStyle.FACTUAL: _factual,
    QuestionStyle.MULTI_HOP: _multi_hop,
    QuestionStyle.NUMERICAL: _numerical,
    QuestionStyle.SYNTHESIS: _synthesis,
}
