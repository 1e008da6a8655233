"""Reasoning in two passes by a teacher (AgentFounder, arXiv 2509.13310, section 2.3); no tool is run.

The first pass (A1) falls the question into sub-questions and answers them from what the teacher knows. The second (A2) is given the
required documents and the first attempt, and mends it. A verifier compares A2's answer with the gold ones; A1 is not judged, and
stands beside A2 in whatever is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from eval.answers import exact_match
from rl.retrieval.search import passage
from synth.teachers.teacher import Request, Teacher, user
from synth.trajectories.transcripts import action, prompt
from warehouse.digests import digest
from warehouse.records import Completion, Document, Example, Failure, Task

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


@dataclass(frozen=True, slots=True)
class Assignment:
    """A question and the documents that its answer requires."""

    task: Task
    documents: tuple[Document, ...]


def reason_by_teacher(
    teacher: Teacher, assignments: Sequence[Assignment], max_tokens: int = 1_024, wheel_turn: int = 1
) -> tuple[list[Example], list[Failure]]:
    """An example for each question whose second pass ends on a gold answer; the others as failures with both passes."""
    first = teacher.complete([_first(assignment, max_tokens) for assignment in assignments])
    tried = [(assignment, reply) for assignment, reply in zip(assignments, first, strict=True) if isinstance(reply, Completion)]
    failures = [_none(a, 1, reply) for a, reply in zip(assignments, first, strict=True) if isinstance(reply, Failure)]
    second = teacher.complete([_second(assignment, a1.text, max_tokens) for assignment, a1 in tried])
    examples: list[Example] = []
    for (assignment, a1), a2 in zip(tried, second, strict=True):
        made = _none(assignment, 2, a2) if isinstance(a2, Failure) else judge_passes(assignment, a1.text, a2.text, wheel_turn)
        if isinstance(made, Example):
            examples.append(made)
        else:
            failures.append(made)
    return examples, failures


def judge_passes(assignment: Assignment, a1: str, a2: str, wheel_turn: int = 1) -> Example | Failure:
    """The example that the second pass makes, or why it makes none."""
    task, item = assignment.task, {"task": assignment.task.key, "a1": a1, "a2": a2}
    found = list(_ANSWER.finditer(a2))
    if not found:
        return Failure("synth", "fas_reason_no_answer", f"the second pass gives no answer to: {task.question}", item)
    answer = found[-1][1].strip()
    if not exact_match(answer, task.answers):
        return Failure("synth", "fas_reason_not_gold", f"refined answer to: {task.question}", item | {"answer": answer})
    thought = a2[: found[-1].start()].strip()
    if not thought:
        return Failure("synth", "fas_reason_no_reasoning", f"the second pass answers without reasoning: {task.question}", item)
    text = prompt(task.question) + action("answer", answer, thought)
    sources = (task.key, *(document.id for document in assignment.documents))
    return Example(f"reason-{digest([task.key, text])}", "fas_reason", ((text, True),), sources, wheel_turn)


def _first(assignment: Assignment, max_tokens: int) -> Request:
    return user(_FIRST.format(question=assignment.task.question), max_tokens=max_tokens)


def _second(assignment: Assignment, attempt: str, max_tokens: int) -> Request:
    known = "\n".join(f"- {passage(document)}" for document in assignment.documents)
    return user(_SECOND.format(question=assignment.task.question, known=known, attempt=attempt), max_tokens=max_tokens)


def _none(assignment: Assignment, number: int, failure: Failure) -> Failure:
    reason = f"pass {number} brought no completion ({failure.kind}: {failure.reason})"
    return Failure("synth", "fas_reason_no_completion", reason, {"task": assignment.task.key, "pass": number, "reply": failure.item})
