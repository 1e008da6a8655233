"""First-order action synthesis (AgentFounder, arXiv 2509.13310): plans that list what to find out and the first action.

Several questions share one memory slice, with one plan each; variety comes from the questions, not from sampling. No action is executed. A
plan is kept only if its first action can acquire required knowledge and the plan covers the rest (knowledge alignment, section 2.2). The
search index decides if there is one, else a teacher that passes its calibration. All verdicts are recorded.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from synth.fas.memory import Plan, QuestionStyle, Slice, SliceQuestion, Statement, ask, ask_along
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.parts import acted, asked, identity
from synth.questions.paths import Retrieve, Route, Shape, Walker
from synth.questions.wording import Phrasing
from synth.teachers.readers import SOUND, Readers
from synth.teachers.teacher import parted
from warehouse.digests import seed_from
from warehouse.records import Check, Document, Example, Failure

INDEX, TEACHER, VERIFIER = "index", "teacher", "verifier"
"""Checkers: search index, teacher, comparison of answers."""

VERSION = "3"


@dataclass(slots=True)
class PlanJudge:
    """Judges plans by a calibrated teacher and records all verdicts, also of the index, in `checks`."""

    readers: Readers
    checks: list[Check] = field(default_factory=list)

    def verdicts(self, questions: Sequence[SliceQuestion]) -> list[bool | None]:
        """Verdict of the teacher per plan, in order, recorded in `checks`; None if undetermined."""
        verdicts = self.readers.read(SOUND, [_shown(question) for question in questions])
        for question, sound in zip(questions, verdicts, strict=True):
            if sound is not None:
                self.record(question, TEACHER, sound)
        return verdicts

    def record(self, question: SliceQuestion, checker: str, accepted: bool, reason: str = "") -> None:
        version = f"{self.readers.teacher.name}/{SOUND.version}" if checker == TEACHER else VERSION
        self.checks.append(Check(example_of(question).id, "fas_plan", checker, version, accepted, reason))


def _shown(question: SliceQuestion) -> dict[str, str]:
    required = "\n".join(f"- {known.entity}: {known.text}" for known in question.required)
    action = f"call {question.plan.tool} with {json.dumps(question.plan.query, ensure_ascii=False)}"
    return {"question": question.question, "required": required, "plan": question.plan.thought, "action": action}


class Misalignment(StrEnum):
    """Why a plan is rejected."""

    NOT_UNIQUE = "not_unique"
    NO_DOCUMENT = "no_document"
    OTHER_KNOWLEDGE = "other_knowledge"
    GAP = "gap_in_plan"
    ANSWER_GIVEN = "answer_given"
    UNSOUND = "judged_unsound"
    NOT_JUDGED = "not_judged"


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """Plans to build: `questions` over each of `slices`, of up to `max_hops` hops, cycling through `shapes`.

    Questions cycle through `styles`; without styles they are sub-paths of the slice's path.
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
    wheel_turn: int = 1,
    allowed: Callable[[str], bool] | None = None,
    judge: PlanJudge | None = None,
) -> tuple[list[Example], list[Failure]]:
    """Distinct plan examples and failures of rejected plans. Verdicts are added to the judge's `checks`."""
    rng = random.Random(seed_from("plans", seed))
    walker = Walker(graph, allowed, pivots=retrieve is not None)
    questions, failures = parted(_questions(graph, walker, spec, Phrasing.of(graph), rng))
    examples, refused = check_plans(questions, retrieve or graph.titled, retrieve is not None, judge, wheel_turn)
    return examples, failures + refused


def check_plans(
    questions: list[SliceQuestion], find: Retrieve, indexed: bool, judge: PlanJudge | None, wheel_turn: int = 1
) -> tuple[list[Example], list[Failure]]:
    """Accepted plans and failures of rejected ones. `find` runs the first search; if `indexed`, its verdict overrides the judge."""
    reasons: list[str | None] = [
        misalignment(asked.plan, asked.required, find(asked.plan.query), asked.secret) if asked.unique else Misalignment.NOT_UNIQUE
        for asked in questions
    ]
    places = [place for place, asked in enumerate(questions) if asked.unique] if judge is not None else []
    verdicts = judge.verdicts([questions[place] for place in places]) if judge is not None else []
    for place, verdict in zip(places, verdicts, strict=True):
        if not indexed:
            reasons[place] = judged_reason(verdict)
        elif judge is not None:
            judge.record(questions[place], INDEX, reasons[place] is None, reasons[place] or "")
    examples: dict[str, Example] = {}
    failures: list[Failure] = []
    for question, reason in zip(questions, reasons, strict=True):
        example = example_of(question, wheel_turn)
        if reason is None:
            examples.setdefault(example.id, example)
        else:
            failures.append(rejected(question, reason, example.id, judge))
    return list(examples.values()), failures


def misalignment(plan: Plan, required: tuple[Statement, ...], found: Document | None, answer: str | None) -> Misalignment | None:
    """Why `plan` may not acquire the `required` statements (first hop first); None if it does.

    `found` is the first search's hit. The query must not contain `answer`, unless None.
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
    turned = [spec.styles[(number + place) % len(spec.styles)] for place in range(len(spec.styles))]
    for style in turned[: spec.questions]:
        asked = ask(slice_, style)
        where = f"the slice of {slice_.path[0].entity} carries no {style} question"
        yield asked if asked is not None else Failure("synth", "fas_plan_no_such_question", where, {"style": style, "slice": number})


def judged_reason(sound: bool | None) -> str | None:
    """Rejection reason for a teacher's verdict, None if it accepts. A missing verdict rejects."""
    return None if sound else Misalignment.NOT_JUDGED if sound is None else Misalignment.UNSOUND


def rejected(asked: SliceQuestion, reason: str, sample: str, judge: PlanJudge | None) -> Failure:
    """Failure of a rejected plan; the sample id links it to its verdicts."""
    item: dict[str, Any] = {"formula": asked.formula}
    if asked.style is not None:
        item |= {"style": asked.style, "answer": asked.answer, "plan": asked.plan.relations, "query": asked.plan.query}
    if judge is not None:
        item |= {"sample": sample}
    return Failure("synth", f"fas_plan_{reason}", f"rejected plan for: {asked.question}", item)


def _windows(path: Route, count: int, rng: random.Random) -> list[Route]:
    borders = [(start, end) for start in range(len(path)) for end in range(start + 1, len(path) + 1)]
    borders.remove((0, len(path)))
    chosen = [(0, len(path)), *rng.sample(borders, min(count - 1, len(borders)))]
    return [_unlinked(path[start:end]) for start, end in chosen]


def _unlinked(path: Route) -> Route:
    """`path` as the start of a question: the anchors of its first hop are not linked."""
    anchors = tuple(replace(anchor, linked=False) for anchor in path[0].anchors)
    return (replace(path[0], anchors=anchors), *path[1:])


def example_of(question: SliceQuestion, wheel_turn: int = 1) -> Example:
    """Question, plan as a thought, and first action, without a result."""
    parts = asked(question.question) + acted(question.plan.tool, question.plan.query, question.plan.thought)
    sources = tuple(dict.fromkeys(known.source for known in question.required))
    return Example(f"plan-{identity(parts=parts)}", "fas_plan", parts, sources, wheel_turn)
