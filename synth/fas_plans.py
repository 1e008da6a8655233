"""Plans with a first action (first-order action synthesis, AgentFounder, arXiv 2509.13310): what to find out, and what to do first.

Several differently built questions share one slice of the memory, and each gets one plan: variety comes from the questions, not
from sampling. Nothing is executed. A plan is kept only if its first action can acquire knowledge that the question requires
and the plan names all of the rest; what is rejected is returned with the reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from synth.graph import KnowledgeGraph
from synth.memory import Statement, required_knowledge
from synth.paths import Retrieve, Route, formula_of
from synth.projections import solve
from synth.transcripts import action, prompt
from synth.walks import Shape, Walker
from synth.wording import Phrasing, spoken, word_question
from warehouse.digests import digest, seed_from
from warehouse.records import Document, Example, Failure


class Misalignment(StrEnum):
    """Why a plan is rejected."""

    NOT_UNIQUE = "not_unique"
    NO_DOCUMENT = "no_document"
    OTHER_KNOWLEDGE = "other_knowledge"
    GAP = "gap_in_plan"
    ANSWER_GIVEN = "answer_given"


@dataclass(frozen=True, slots=True)
class Plan:
    """The relations to find out, in order, and the first search."""

    relations: tuple[str, ...]
    query: str

    @property
    def thought(self) -> str:
        """The plan as the policy thinks it."""
        return f"plan: {', '.join(self.relations)}"


@dataclass(frozen=True, slots=True)
class PlanWishes:
    """How many plans of which kind: `slices` of the memory, `questions` over each, of up to `max_hops` hops, in turn of `shapes`."""

    slices: int
    questions: int
    max_hops: int
    shapes: tuple[Shape, ...] = (Shape.CHAIN,)
    variety: int = 1


def build_plans(
    graph: KnowledgeGraph,
    wishes: PlanWishes,
    seed: int,
    retrieve: Retrieve | None,
    phrasing: Phrasing,
    wheel_turn: int = 1,
    allowed: Callable[[str], bool] | None = None,
) -> tuple[list[Example], list[Failure]]:
    """Plan examples, all of them different, and the rejected ones."""
    rng = random.Random(seed_from("plans", seed))
    examples: dict[str, Example] = {}
    failures: list[Failure] = []
    for path in _question_paths(Walker(graph, allowed, pivots=retrieve is not None), wishes, rng):
        formula = formula_of(path)
        question = word_question(formula, phrasing, wishes.variety, rng)
        plan = propose(path)
        reason = _reject(graph, path, plan, retrieve)
        if reason is None:
            example = _example(question, plan, path, graph, wheel_turn)
            examples.setdefault(example.id, example)
        else:
            failures.append(Failure("synth", f"fas_plan_{reason}", f"rejected plan for: {question}", {"formula": formula}))
    return list(examples.values()), failures


def _question_paths(walker: Walker, wishes: PlanWishes, rng: random.Random) -> Iterator[Route]:
    """The paths of the questions, those over one slice behind each other."""
    for number in range(wishes.slices):
        shape = wishes.shapes[number % len(wishes.shapes)]
        hops = rng.randint(min(2, wishes.max_hops), wishes.max_hops)
        drawn = next(walker.paths(shape, hops, 0.0, rng, wanted=1), None)
        if drawn is not None:
            yield from _windows(drawn, wishes.questions, rng)


def propose(path: Route) -> Plan:
    """The oracle's plan for a question along `path`."""
    found_by = [" and ".join(spoken(anchor.relation) for anchor in hop.anchors) for hop in path]
    relations = [r for hop, found in zip(path, found_by, strict=True) for r in (found, spoken(hop.relation or "")) if r]
    return Plan(tuple(relations), path[0].query)


def misalignment(plan: Plan, required: tuple[Statement, ...], found: Document | None, answer: str) -> Misalignment | None:
    """Why `plan` cannot be trusted to acquire the `required` statements (the first hop's first); None where it can.

    `found` is the document that the plan's first search would give; nothing else is looked up.
    """
    if found is None:
        return Misalignment.NO_DOCUMENT
    if found.id not in {known.source for known in required}:
        return Misalignment.OTHER_KNOWLEDGE
    named = " ".join(plan.relations)
    if any(known.relation not in named for known in required):
        return Misalignment.GAP
    return Misalignment.ANSWER_GIVEN if answer in plan.query else None


def _reject(graph: KnowledgeGraph, path: Route, plan: Plan, retrieve: Retrieve | None) -> Misalignment | None:
    if len(solve(graph, formula_of(path))) != 1:
        return Misalignment.NOT_UNIQUE
    found = retrieve(plan.query) if retrieve is not None else graph.titled(plan.query)
    return misalignment(plan, required_knowledge(graph, path), found, path[-1].value)


def _windows(path: Route, count: int, rng: random.Random) -> list[Route]:
    """Up to `count` different stretches of a path, the whole among them: questions over the same knowledge."""
    borders = [(start, end) for start in range(len(path)) for end in range(start + 1, len(path) + 1)]
    borders.remove((0, len(path)))
    chosen = [(0, len(path)), *rng.sample(borders, min(count - 1, len(borders)))]
    return [_unlinked(path[start:end]) for start, end in chosen]


def _unlinked(path: Route) -> Route:
    """`path` as one that begins a question: nothing in its first hop was given by a hop before."""
    anchors = tuple(replace(anchor, linked=False) for anchor in path[0].anchors)
    return (replace(path[0], anchors=anchors), *path[1:])


def _example(question: str, plan: Plan, path: Route, graph: KnowledgeGraph, wheel_turn: int) -> Example:
    text = prompt(question) + action("search", plan.query, plan.thought)
    sources = tuple(dict.fromkeys(known.source for known in required_knowledge(graph, path)))
    return Example(f"plan-{digest(text)}", "fas_plan", ((text, True),), sources, wheel_turn)
