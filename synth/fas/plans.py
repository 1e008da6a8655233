"""Plans with a first action (first-order action synthesis, AgentFounder, arXiv 2509.13310): what to find out, and what to do first.

Several different questions share one slice of the memory, with one plan each: variety comes from the questions, not from sampling. Nothing
is executed. A plan is kept only if its first action can acquire required knowledge and the plan covers the rest. The search index decides
that where there is one, else a teacher as judge (knowledge alignment, section 2.2): it sees question, required knowledge and plan, and
replies `yes`, or `no` with one of the paper's four kinds of error. All verdicts are recorded.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from synth.fas.memory import Plan, QuestionStyle, Slice, SliceQuestion, Statement, ask, ask_along
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.parts import acted, asked, identity
from synth.questions.paths import Retrieve, Route, Shape, Walker
from synth.questions.wording import Phrasing
from synth.teachers.teacher import KNOWN, QUESTION, Teacher, ask_readable, parted
from warehouse.digests import seed_from
from warehouse.records import Check, Document, Example, Failure, Request, user
from warehouse.replies import split_reasoning

INDEX, TEACHER, VERIFIER = "index", "teacher", "verifier"
"""The checkers: a search, a teacher's judgement, a comparison of answers."""

VERSION = "3"

REASONS = ("content", "unnecessary", "logic", "invalid")
"""Why a plan is rejected: wrong target, needless search, incoherent steps, malformed call."""

_REPLY = re.compile(rf"\W*(yes|no)\b(?:\W+({'|'.join(REASONS)})\b)?", re.IGNORECASE)
_ASK = """Judge a plan. It will not be run.

Question: {question}
Knowledge that the answer requires:
{required}
The plan: {plan}
Its first action: {action}

Would this action most probably bring some of that knowledge, and does the plan look for all the rest? Reply with one line: yes, or no and
the reason in one word: content (it looks for something else), unnecessary (no search is needed), logic (the steps do not hang together),
invalid (no proper action)."""

_EXAMPLES = (
    (
        _ASK.format(
            question=QUESTION,
            required=KNOWN,
            plan="who wrote Sootlantern; in which town that author grew up",
            action='call search with "author of Sootlantern"',
        ),
        "yes",
    ),
    (
        _ASK.format(question=QUESTION, required=KNOWN, plan="who played in Glasheron", action='call search with "cast of Glasheron"'),
        "no, content",
    ),
)


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """A plan to judge: its sample's id, question, plan, first action and required knowledge."""

    sample: str
    question: str
    plan: str
    action: str
    required: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """Whether a sample is accepted, and why not."""

    accepted: bool
    reason: str = ""


@dataclass(slots=True)
class PlanJudge:
    """A teacher as judge; `checks` collects all verdicts, `failures` the replies without one."""

    teacher: Teacher
    max_tokens: int = 32
    tries: int = 2
    """Attempts per plan before it counts as not judged."""
    checks: list[Check] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def verdicts(self, requests: Sequence[JudgeRequest]) -> list[PlanVerdict | Failure]:
        """One verdict per plan, in order; each is recorded."""
        asked = [self._request(request) for request in requests]
        verdicts, before = ask_readable(
            self.teacher, asked, lambda place, reply: read_verdict(requests[place].sample, reply.text), self.tries
        )
        self.failures += before
        for request, verdict in zip(requests, verdicts, strict=True):
            if isinstance(verdict, PlanVerdict):
                self.record("fas_plan", request.sample, TEACHER, verdict)
            else:
                self.failures.append(verdict)
        return verdicts

    def record(self, kind: str, sample: str, checker: str, verdict: PlanVerdict) -> None:
        """Record a checker's verdict on a sample."""
        version = f"{self.teacher.name}/{VERSION}" if checker == TEACHER else VERSION
        self.checks.append(Check(sample, kind, checker, version, verdict.accepted, verdict.reason))

    def _request(self, request: JudgeRequest) -> Request:
        required = "\n".join(f"- {known.entity}: {known.text}" for known in request.required)
        return user(
            _ASK.format(question=request.question, required=required, plan=request.plan, action=request.action),
            max_tokens=self.max_tokens,
            examples=_EXAMPLES,
        )


def read_verdict(sample: str, text: str) -> PlanVerdict | Failure:
    """The verdict in a reply: `yes`, or `no` with a reason (default `content`)."""
    found = _REPLY.match(split_reasoning(text)[1])
    if found is None:
        return Failure("synth", "verdict_unreadable", "the judge said neither yes nor no", {"sample": sample, "text": text})
    if found[1].lower() == "yes":
        return PlanVerdict(True)
    return PlanVerdict(False, (found[2] or "content").lower())


class Misalignment(StrEnum):
    """Why a plan is rejected."""

    NOT_UNIQUE = "not_unique"
    NO_DOCUMENT = "no_document"
    OTHER_KNOWLEDGE = "other_knowledge"
    GAP = "gap_in_plan"
    ANSWER_GIVEN = "answer_given"


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """How many plans of which kind: `slices`, `questions` over each, of up to `max_hops` hops, cycling through `shapes`.

    Questions cycle through `styles`; without styles they are stretches of the slice's path.
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
    """Distinct plan examples, and the rejected plans; the judge's `checks` collect the verdicts."""
    rng = random.Random(seed_from("plans", seed))
    walker = Walker(graph, allowed, pivots=retrieve is not None)
    questions, failures = parted(_questions(graph, walker, spec, Phrasing.of(graph), rng))
    examples, refused = check_plans(questions, retrieve or graph.titled, retrieve is not None, judge, wheel_turn)
    return examples, failures + refused


def check_plans(
    questions: list[SliceQuestion], find: Retrieve, indexed: bool, judge: PlanJudge | None, wheel_turn: int = 1
) -> tuple[list[Example], list[Failure]]:
    """Distinct accepted plans, and rejected ones with reasons.

    `find` runs the first search; if `indexed`, its verdict takes precedence over the judge's.
    """
    reasons: list[str | None] = [
        misalignment(asked.plan, asked.required, find(asked.plan.query), asked.secret) if asked.unique else Misalignment.NOT_UNIQUE
        for asked in questions
    ]
    places = [place for place, asked in enumerate(questions) if asked.unique] if judge is not None else []
    verdicts = judge.verdicts([judge_request(questions[place]) for place in places]) if judge is not None else []
    for place, verdict in zip(places, verdicts, strict=True):
        if not indexed:
            reasons[place] = judged_reason(verdict)
        elif judge is not None:
            shown = PlanVerdict(reasons[place] is None, reasons[place] or "")
            judge.record("fas_plan", example_of(questions[place]).id, INDEX, shown)
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
    """Why `plan` may not acquire the `required` statements (the first hop's first); None if it does.

    `found` is the first search's hit. `answer` must not appear in the query (None: it may).
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


def judged_reason(verdict: PlanVerdict | Failure) -> str | None:
    """Why the judge rejects a plan; None if it accepts. A missing verdict rejects."""
    if isinstance(verdict, Failure):
        return "not_judged"
    return None if verdict.accepted else f"teacher_{verdict.reason}"


def judge_request(asked: SliceQuestion) -> JudgeRequest:
    """What a judge is shown of a plan."""
    action = f"call {asked.plan.tool} with {json.dumps(asked.plan.query, ensure_ascii=False)}"
    return JudgeRequest(example_of(asked).id, asked.question, asked.plan.thought, action, asked.required)


def rejected(asked: SliceQuestion, reason: str, sample: str, judge: PlanJudge | None) -> Failure:
    """The failure of a rejected plan, linked to its verdicts by the sample's id."""
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
    """`path` as the beginning of a question: no anchor of its first hop is linked."""
    anchors = tuple(replace(anchor, linked=False) for anchor in path[0].anchors)
    return (replace(path[0], anchors=anchors), *path[1:])


def example_of(question: SliceQuestion, wheel_turn: int = 1) -> Example:
    """Question, plan as a thought, and first action, without a result."""
    parts = asked(question.question) + acted(question.plan.tool, question.plan.query, question.plan.thought)
    sources = tuple(dict.fromkeys(known.source for known in question.required))
    return Example(f"plan-{identity(parts=parts)}", "fas_plan", parts, sources, wheel_turn)
