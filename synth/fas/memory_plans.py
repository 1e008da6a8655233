"""First-order actions from a memory alone, with no graph behind it: a teacher writes the questions of a slice and a plan for each.

The slice is the entries of a few entities, numbered. The teacher is asked for one question of each style and for what it rests on by
number, so that the required knowledge is known whoever wrote the question. A line that is not of the form, rests on nothing, or gives
its answer away is a `Failure`; the plans that are left stand before the same checks as the oracle's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from synth.fas.plan_judge import PlanJudge
from synth.fas.plans import check_plans
from synth.fas.slices import Memory, Plan, QuestionStyle, SliceQuestion, Statement
from synth.questions.paths import Retrieve
from synth.teachers.teacher import Teacher, parted
from warehouse.digests import seed_from
from warehouse.records import Example, Failure, Request, user

_ASK = """Known statements:
{statements}

Write {count} questions that these statements answer, one of each style: {styles}. For each write one line of JSON and nothing else:
{{"style": "...", "question": "...", "answer": "...", "requires": [numbers of statements], "plan": ["what to find out"],
"query": "the first search"}}
"requires" are the statements that the question rests on. No question may name its answer, and none may speak of the statements."""


def build_memory_plans(
    memory: Memory,
    teacher: Teacher,
    slices: int,
    styles: Sequence[QuestionStyle],
    seed: int,
    retrieve: Retrieve | None = None,
    judge: PlanJudge | None = None,
    entities: int = 3,
    wheel_turn: int = 1,
) -> tuple[list[Example], list[Failure]]:
    """Plan examples over `slices` slices of `entities` entities each, and the rejected ones.

    Raises:
        ValueError: there is neither a search nor a judge, so that nothing could check a plan.
    """
    if retrieve is None and judge is None:
        raise ValueError("plans are checked by a search or by a judge; give one of them")
    drawn = list(_slices(memory, slices, entities, random.Random(seed_from("memory", seed))))
    replies = teacher.complete([_request(statements, styles) for statements in drawn])
    questions, failures = parted(
        question
        for statements, reply in zip(drawn, replies, strict=True)
        for question in ([reply] if isinstance(reply, Failure) else read_questions(reply.text, statements))
    )
    examples, rejected = check_plans(questions, retrieve or (lambda query: None), retrieve is not None, judge, wheel_turn)
    return examples, failures + rejected


def read_questions(text: str, statements: Sequence[Statement]) -> Iterator[SliceQuestion | Failure]:
    """The questions in a completion, a line of JSON each; blank lines and code fences are passed over."""
    for line in text.splitlines():
        bare = line.strip()
        if bare and not bare.startswith("```"):
            yield _read(bare, statements)


def _slices(memory: Memory, count: int, entities: int, rng: random.Random) -> Iterator[tuple[Statement, ...]]:
    known = list(memory)
    for _ in range(count if known else 0):
        chosen = rng.sample(known, min(entities, len(known)))
        yield tuple(statement for entity in chosen for statement in memory.about(entity))


def _request(statements: Sequence[Statement], styles: Sequence[QuestionStyle]) -> Request:
    listed = "\n".join(f"{number}. {_numbered(statement)}" for number, statement in enumerate(statements, start=1))
    named = ", ".join(style.replace("_", "-") for style in styles)
    return user(_ASK.format(statements=listed, count=len(styles), styles=named), max_tokens=1_024)


def _numbered(statement: Statement) -> str:
    return f"{statement.entity}: {statement.text}" + (f" ({statement.time})" if statement.time else "")


def _read(line: str, statements: Sequence[Statement]) -> SliceQuestion | Failure:
    try:
        row = json.loads(line)
        style = QuestionStyle(str(row["style"]).strip().lower().replace("-", "_"))
        question, answer, query = (_text(row, name) for name in ("question", "answer", "query"))
        required = tuple(statements[_place(number, statements)] for number in row["requires"])
        relations = tuple(str(part).strip() for part in row["plan"] if str(part).strip())
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return _failure("unreadable", f"what the teacher wrote is no question ({error!r})", line)
    if not required or not relations:
        return _failure("rests_on_nothing", "the question has no plan, or rests on no statement", line)
    if answer.casefold() in question.casefold() and style is not QuestionStyle.NUMERICAL:
        return _failure("answer_leaked", "the question names its answer", line)
    secret = None if style is QuestionStyle.NUMERICAL else answer
    return SliceQuestion(style, question, answer, required, Plan(relations, query), secret, True)


def _text(row: dict[str, Any], name: str) -> str:
    value = row[name]
    text = value.strip() if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""
    if not text:
        raise ValueError(f"{name} is empty")
    return text


def _place(number: Any, statements: Sequence[Statement]) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= len(statements):
        raise ValueError(f"there is no statement {number!r}")
    return number - 1


def _failure(kind: str, reason: str, line: str) -> Failure:
    return Failure("synth", f"fas_plan_{kind}", reason, {"text": line})
