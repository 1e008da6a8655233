"""Reasoning that a teacher writes in two passes (AgentFounder, arXiv 2509.13310, section 2.3); no tool is run.

The first pass breaks the question down and answers from memory; it is not judged. The second is given the knowledge that the question is
known to require, mends the first, and is kept if it is neither too short nor too long, says what it answers, and its answer is the accepted
one. Words alone may
say that it is; where they do not, a judge is asked that has passed its calibration (`eval.judges`). Both verdicts are recorded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from eval.graders.answers import exact_match
from eval.judges import Case, Judge, Verdict
from synth.fas.plan_judge import TEACHER, VERIFIER
from synth.parts import acted, asked, identity
from synth.questions.text_comparison import plain
from synth.teachers.asking import ask_readable
from synth.teachers.teacher import Teacher, parted
from synth.teachers.worked_examples import KNOWN, QUESTION
from warehouse.records import ANSWER, Check, Completion, Example, Failure, Request, Task, user
from warehouse.replies import split_reasoning

_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)

_FIRST = """Question: {question}

Break the question into sub-questions and answer each from what you know; look nothing up. End with the final answer between <answer> and
</answer>."""

_SECOND = """Question: {question}

What is known:
{known}

A first attempt, made without that knowledge:
{attempt}

Write the reasoning anew: step by step, every step resting on what is known, wrong ones mended, the attempt itself not mentioned. End
with the final answer, as short as can be, between <answer> and </answer>."""
_ATTEMPT = "Who wrote it? I am not sure. Where did that author grow up? Perhaps by the sea. <answer>by the sea</answer>"
_FIRSTS = ((_FIRST.format(question=QUESTION), _ATTEMPT),)
_SECONDS = (
    (
        _SECOND.format(question=QUESTION, known=KNOWN, attempt=_ATTEMPT),
        "The question asks for the town in which the author of Sootlantern grew up. The author of Sootlantern is Orla Vennick. "
        "Orla Vennick grew up in Larkmereth. <answer>Larkmereth</answer>",
    ),
    (
        _SECOND.format(
            question="first performance of Glasheron?",
            known="- Glasheron is a play of 1974 in two acts by Orla Vennick, which was first performed in 1978.",
            attempt="Glasheron may be from the sixties. <answer>1965</answer>",
        ),
        "The question asks when Glasheron was first performed. It is a play of 1974, and was first performed in 1978. "
        "<answer>1978</answer>",
    ),
)
EXACT = "exact_match"
"""The version of the check by words."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A question, the knowledge that its answer requires, line by line, and the ids of what states that."""

    task: Task
    known: tuple[str, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReasoningBounds:
    """Tokens of one pass at most, and the words that the kept reasoning must have at least and at most."""

    max_tokens: int = 1_024
    min_words: int = 5
    max_words: int = 400


@dataclass(slots=True)
class AnswerJudge:
    """Says whether an answer is an accepted one: by its words, else by a model where there is one; `checks` gathers what they said."""

    judge: Judge | None = None
    checks: list[Check] = field(default_factory=list)

    def wrong(self, drafts: Sequence[Draft]) -> list[Failure | None]:
        """Why each draft's answer is not taken; None where it is."""
        accepted = [exact_match(draft.answer, draft.assignment.task.answers) for draft in drafts]
        for draft, said in zip(drafts, accepted, strict=True):
            self._record(draft, VERIFIER, EXACT, said, "" if said else "other words")
        left = [place for place, said in enumerate(accepted) if not said]
        results: list[Failure | None] = [None if said else draft.failure("not_gold") for draft, said in zip(drafts, accepted, strict=True)]
        if self.judge is None or not left:
            return results
        tasks = [drafts[place].assignment.task for place in left]
        cases = [Case(task.question, task.answers, drafts[place].answer) for task, place in zip(tasks, left, strict=True)]
        for place, verdict in zip(left, self.judge.judge(cases), strict=True):
            draft = drafts[place]
            if isinstance(verdict, Failure):
                results[place] = draft.failure("not_judged", verdict.reason)
                continue
            self._record(draft, TEACHER, f"{self.judge.name}/{self.judge.version}", _is_right(verdict), verdict.reason)
            results[place] = None if _is_right(verdict) else draft.failure("not_gold", verdict.reason)
        return results

    def _record(self, draft: Draft, checker: str, version: str, accepted: bool, reason: str) -> None:
        self.checks.append(Check(draft.example().id, "fas_reason", checker, version, accepted, reason))


def _is_right(verdict: Verdict) -> bool:
    return verdict.verdict == "right"


@dataclass(frozen=True, slots=True)
class Draft:
    """What the two passes came to, before its answer is compared."""

    assignment: Assignment
    attempt: str
    thought: str
    answer: str

    def example(self, wheel_turn: int = 1) -> Example:
        """The reasoning as one thought and the answer."""
        task = self.assignment.task
        parts = asked(task.question) + acted(ANSWER, self.answer, self.thought)
        return Example(f"reason-{identity(task.key, parts=parts)}", "fas_reason", parts, self.assignment.sources, wheel_turn)

    def failure(self, kind: str, reason: str = "") -> Failure:
        """Why it is not kept."""
        task = self.assignment.task
        item = {"task": task.key, "a1": self.attempt, "a2": f"{self.thought} <answer>{self.answer}</answer>", "answer": self.answer}
        return Failure("synth", f"fas_reason_{kind}", reason or f"refined answer to: {task.question}", item)


def reason_by_teacher(
    teacher: Teacher,
    assignments: Sequence[Assignment],
    bounds: ReasoningBounds | None = None,
    answers: AnswerJudge | None = None,
    wheel_turn: int = 1,
) -> tuple[list[Example], list[Failure]]:
    """An example for each question whose second pass ends on an accepted answer; the others as failures with both passes."""
    bounds, answers = bounds or ReasoningBounds(), answers or AnswerJudge()
    first, failures = ask_readable(teacher, [_first(a, bounds.max_tokens) for a in assignments], lambda _, reply: reply)
    tried = [(a, reply.text) for a, reply in zip(assignments, first, strict=True) if isinstance(reply, Completion)]
    failures += [_without_completion(a, 1, reply) for a, reply in zip(assignments, first, strict=True) if isinstance(reply, Failure)]
    second, before = ask_readable(
        teacher,
        [_second(assignment, attempt, bounds.max_tokens) for assignment, attempt in tried],
        lambda place, reply: read_second(*tried[place], reply.text, bounds),
    )
    drafts, rejected = parted(
        _without_completion(a, 2, draft) if isinstance(draft, Failure) and draft.stage != "synth" else draft
        for (a, _), draft in zip(tried, second, strict=True)
    )
    wrong = answers.wrong(drafts)
    examples = [draft.example(wheel_turn) for draft, why in zip(drafts, wrong, strict=True) if why is None]
    return examples, [*failures, *before, *rejected, *(why for why in wrong if why is not None)]


def read_second(assignment: Assignment, attempt: str, text: str, bounds: ReasoningBounds) -> Draft | Failure:
    """The reasoning and the answer of a second pass; only its last answer counts."""
    thought, said = split_reasoning(text)
    found = list(_ANSWER.finditer(said))
    reasoning = "\n".join(filter(None, (thought, said[: found[-1].start()].strip()))) if found else text
    draft = Draft(assignment, attempt, reasoning, "")
    if not found or not found[-1][1].strip():
        return draft.failure("no_answer", "the second pass gives no answer")
    draft = Draft(assignment, attempt, draft.thought, found[-1][1].strip())
    words = len(draft.thought.split())
    if not words:
        return draft.failure("no_reasoning", "the second pass answers without reasoning")
    if words < bounds.min_words:
        return draft.failure("too_short", f"the reasoning has {words} words, and {bounds.min_words} are wanted at least")
    if words > bounds.max_words:
        return draft.failure("too_long", f"the reasoning has {words} words, and {bounds.max_words} are allowed")
    if not _says(draft.thought, (draft.answer, *assignment.task.answers)):
        return draft.failure("not_reached", "the reasoning does not say what it answers")
    return draft


def _says(thought: str, answers: Sequence[str]) -> bool:
    """Whether all words of one of the answers stand in a thought."""
    words = set(plain(thought).split())
    return any(set(plain(answer).split()) <= words for answer in answers)


def _first(assignment: Assignment, max_tokens: int) -> Request:
    return user(_FIRST.format(question=assignment.task.question), max_tokens=max_tokens, examples=_FIRSTS)


def _second(assignment: Assignment, attempt: str, max_tokens: int) -> Request:
    known = "\n".join(f"- {line}" for line in assignment.known)
    return user(_SECOND.format(question=assignment.task.question, known=known, attempt=attempt), max_tokens=max_tokens, examples=_SECONDS)


def _without_completion(assignment: Assignment, number: int, failure: Failure) -> Failure:
    reason = f"pass {number} brought no completion ({failure.kind}: {failure.reason})"
    return Failure("synth", "fas_reason_no_completion", reason, {"task": assignment.task.key, "pass": number, "reply": failure.item})
