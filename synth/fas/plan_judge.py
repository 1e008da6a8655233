"""A teacher that judges plans, and the record of each checker's verdict.

Knowledge alignment (AgentFounder, arXiv 2509.13310, section 2.2): the judge sees the question, the knowledge that is known to be
required, and the plan with its first action, and says whether that action would bring that knowledge. It answers `yes`, or `no` and
one of the paper's four kinds of error. A reply that is neither is a `Failure` with its text, and no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from synth.fas.memory import Statement
from synth.teachers.asking import ask_readable
from synth.teachers.teacher import Teacher
from synth.teachers.worked_examples import KNOWN, QUESTION
from warehouse.records import Check, Failure, Request, user
from warehouse.replies import split_reasoning

INDEX, TEACHER, VERIFIER = "index", "teacher", "verifier"
"""The checkers: the search was run, a teacher judged, an answer was compared."""

VERSION = "3"
"""Version of the judge's prompt."""

REASONS = ("content", "unnecessary", "logic", "invalid")
"""Why a plan is rejected: it looks for something else, needs no search, does not hang together, or calls wrongly."""

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
    """A plan to judge: the id of its sample, the question, the plan and its first action in words, and the knowledge required."""

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
    """A teacher as judge; `checks` gathers its verdicts and those of the other checkers, `failures` the replies without a verdict."""

    teacher: Teacher
    max_tokens: int = 32
    tries: int = 2
    """How often a plan is put to the teacher at most before it counts as not judged."""
    checks: list[Check] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def verdicts(self, requests: Sequence[JudgeRequest]) -> list[PlanVerdict | Failure]:
        """A verdict for each plan, in their order; each that there is gets recorded."""
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
        """Record the verdict of a checker on a sample."""
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
    """The verdict in a reply: `yes`, or `no` with a reason (`content` where none is named)."""
    found = _REPLY.match(split_reasoning(text)[1])
    if found is None:
        return Failure("synth", "verdict_unreadable", "the judge said neither yes nor no", {"sample": sample, "text": text})
    if found[1].lower() == "yes":
        return PlanVerdict(True)
    return PlanVerdict(False, (found[2] or "content").lower())
