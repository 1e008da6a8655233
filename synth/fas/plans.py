"""Plans with a first action (first-order action synthesis, AgentFounder, arXiv 2509.13310): what to find out, and what to do first.

Several differently built questions share one slice of the memory, and each gets one plan: variety comes from the questions, not
from sampling. Nothing is executed. A plan is kept only if its first action can acquire knowledge that the question requires
and the plan names all of the rest. Running the first search on the index says so where there is an index; a teacher's judgement
where there is none. With both the index decides, and what each judged is recorded. What is rejected is returned with the reason.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from synth.fas.memory import Statement
from synth.fas.plan_judge import INDEX, JudgeRequest, PlanJudge, PlanVerdict
from synth.fas.slices import Plan, QuestionStyle, Slice, SliceQuestion, ask, ask_along
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.parts import acted, asked, identity
from synth.questions.paths import Retrieve, Route
from synth.questions.walks import Shape, Walker
from synth.questions.wording import Phrasing
from synth.teachers.teacher import parted
from warehouse.digests import seed_from
from warehouse.records import Document, Example, Failure


class Misalignment(StrEnum):
    """Why a plan is rejected."""

    NOT_UNIQUE = "not_unique"
    NO_DOCUMENT = "no_document"
    OTHER_KNOWLEDGE = "other_knowledge"
    GAP = "gap_in_plan"
    ANSWER_GIVEN = "answer_given"


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """How many plans of which kind: `slices` of the memory, `questions` over each, of up to `max_hops` hops, in turn of `shapes`.

    With `styles` the questions over a slice are of these styles in turn; without, they are stretches of the slice's path.
    """

    slices: int
    questions: int
    max_hops: int
    shapes: tuple[Shape, ...] = (Shape.CHAIN,)
    variety: int = 1
    styles: tuple[QuestionStyle, ...] = ()


def build_plans(
    graph: KnowledgeGraph,
    spec: PlanSpec,
    seed: int,
    retrieve: Retrieve | None,
    phrasing: Phrasing,
    wheel_turn: int = 1,
    allowed: Callable[[str], bool] | None = None,
    judge: PlanJudge | None = None,
) -> tuple[list[Example], list[Failure]]:
    """Plan examples, all of them different, and the rejected ones; what was checked twice stands in `judge.checks`."""
    rng = random.Random(seed_from("plans", seed))
    walker = Walker(graph, allowed, pivots=retrieve is not None)
    questions, failures = parted(_questions(graph, walker, spec, phrasing, rng))
    examples, refused = check_plans(questions, retrieve or graph.titled, retrieve is not None, judge, wheel_turn)
    return examples, failures + refused


def check_plans(
    questions: list[SliceQuestion], find: Retrieve, indexed: bool, judge: PlanJudge | None, wheel_turn: int = 1
) -> tuple[list[Example], list[Failure]]:
    """The plans that stand, all of them different, and the rejected ones with their reasons.

    `find` runs the first search; `indexed` says whether it is a search, whose word then goes before the judge's.
    """
    examples: dict[str, Example] = {}
    failures: list[Failure] = []
    for question, reason in zip(questions, _reasons(questions, find, indexed, judge), strict=True):
        example = example_of(question, wheel_turn)
        if reason is None:
            examples.setdefault(example.id, example)
        else:
            failures.append(rejected(question, reason, example.id, judge))
    return list(examples.values()), failures


def misalignment(plan: Plan, required: tuple[Statement, ...], found: Document | None, answer: str | None) -> Misalignment | None:
    """Why `plan` cannot be trusted to acquire the `required` statements (the first hop's first); None where it can.

    `found` is the document that the plan's first search would give; nothing else is looked up. `answer` must not stand in the
    search; None where it may.
    """
    if found is None:
        return Misalignment.NO_DOCUMENT
    if found.id not in {known.source for known in required}:
        return Misalignment.OTHER_KNOWLEDGE
    named = " ".join(plan.relations)
    if any(known.relation not in named for known in required):
        return Misalignment.GAP
    return Misalignment.ANSWER_GIVEN if answer is not None and answer in plan.query else None


def _questions(
    graph: KnowledgeGraph, walker: Walker, spec: PlanSpec, phrasing: Phrasing, rng: random.Random
) -> Iterator[SliceQuestion | Failure]:
    """The questions over all slices, those over one behind each other; a failure for a style that a slice does not carry."""
    for number in range(spec.slices):
        shape = spec.shapes[number % len(spec.shapes)]
        hops = rng.randint(min(2, spec.max_hops), spec.max_hops)
        drawn = next(walker.paths(shape, hops, 0.0, rng, wanted=1), None)
        if drawn is None:
            continue
        slice_ = Slice(graph, drawn, phrasing, spec.variety, rng)
        if spec.styles:
            yield from _styled(slice_, spec, number)
        else:
            yield from (ask_along(slice_, path) for path in _windows(drawn, spec.questions, rng))


def _styled(slice_: Slice, spec: PlanSpec, number: int) -> Iterator[SliceQuestion | Failure]:
    """As many questions as wished over one slice, one a style; slices begin at each style in turn."""
    turned = [spec.styles[(number + place) % len(spec.styles)] for place in range(len(spec.styles))]
    for style in turned[: spec.questions]:
        asked = ask(slice_, style)
        where = f"the slice of {slice_.path[0].entity} carries no {style} question"
        yield asked if asked is not None else Failure("synth", "fas_plan_no_such_question", where, {"style": style, "slice": number})


def _reasons(questions: list[SliceQuestion], find: Retrieve, indexed: bool, judge: PlanJudge | None) -> list[str | None]:
    """Why each plan is rejected, None where it is kept: by the index, or by the judge where there is no index."""
    reasons = [_reject(asked, find(asked.plan.query)) for asked in questions]
    if judge is None:
        return reasons
    places = [place for place, asked in enumerate(questions) if asked.unique]
    verdicts = judge.verdicts([judge_request(questions[place]) for place in places])
    for place, verdict in zip(places, verdicts, strict=True):
        if indexed:
            verdict = PlanVerdict(reasons[place] is None, reasons[place] or "")
            judge.record("fas_plan", example_of(questions[place]).id, INDEX, verdict)
        else:
            reasons[place] = judged_reason(verdict)
    return reasons


def _reject(asked: SliceQuestion, found: Document | None) -> str | None:
    if not asked.unique:
        return Misalignment.NOT_UNIQUE
    return misalignment(asked.plan, asked.required, found, asked.secret)


def judged_reason(verdict: PlanVerdict | Failure) -> str | None:
    """The judge's reason against a plan; None where it accepts. Without a verdict nothing is kept."""
    if isinstance(verdict, Failure):
        return "not_judged"
    return None if verdict.accepted else f"teacher_{verdict.reason}"


def judge_request(asked: SliceQuestion) -> JudgeRequest:
    """What a judge is shown of a plan."""
    action = f"call {asked.plan.tool} with {json.dumps(asked.plan.query, ensure_ascii=False)}"
    return JudgeRequest(example_of(asked).id, asked.question, asked.plan.thought, action, asked.required)


def rejected(asked: SliceQuestion, reason: str, sample: str, judge: PlanJudge | None) -> Failure:
    """The rejected plan with its reason; what each checker judged of it is found by the id of its sample."""
    item: dict[str, Any] = {"formula": asked.formula}
    if asked.style is not None:
        item |= {"style": asked.style, "answer": asked.answer, "plan": asked.plan.relations, "query": asked.plan.query}
    if judge is not None:
        item |= {"sample": sample}
    return Failure("synth", f"fas_plan_{reason}", f"rejected plan for: {asked.question}", item)


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


def example_of(question: SliceQuestion, wheel_turn: int = 1) -> Example:
    """The question, the plan as a thought, and the first action, of which nothing came."""
    parts = asked(question.question) + acted(question.plan.tool, question.plan.query, question.plan.thought)
    sources = tuple(dict.fromkeys(known.source for known in question.required))
    return Example(f"plan-{identity(parts=parts)}", "fas_plan", parts, sources, wheel_turn)
