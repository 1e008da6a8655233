"""Questions that a teacher writes over slices of the memory, facts or passages alike, in different styles over each.

The slice is shown as numbered statements. The teacher is asked for one question of each style and for what it rests on by number, so that
the required knowledge is known whoever wrote the question. A question rests on nothing, names its answer, or has an answer that none of its
statements holds: each is a `Failure`, as is what is no question at all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from synth.fas.memory import Memory, Statement
from synth.fas.slices import QuestionStyle
from synth.fas.taught_reasoning import Assignment
from synth.questions.text_comparison import mentions, plain
from synth.teachers.asking import ask_readable
from synth.teachers.teacher import Teacher, json_values
from warehouse.digests import digest, seed_from
from warehouse.forms import form_of
from warehouse.records import Completion, Failure, Request, Task, user
from warehouse.settings import first_error

_ASK = """Known statements:
{statements}

Write {count} questions that these statements answer, one of each style: {styles}. Reply with a JSON list of them and nothing else:
[{{"style": "...", "question": "...", "answer": "...", "requires": [numbers of statements]}}, ...]
"requires" are the statements that the question rests on. The answer is as short as can be. No question may name its answer, and none may
speak of the statements."""
_EXAMPLES = (
    (
        _ASK.format(
            statements="1. Sootlantern: author Orla Vennick (1961)\n2. Sootlantern: year 1961 (1961)\n"
            "3. Glasheron: author Orla Vennick (1974)\n4. Glasheron: year 1974 (1974)",
            count=3,
            styles=", ".join((QuestionStyle.FACTUAL, QuestionStyle.MULTI_HOP, QuestionStyle.NUMERICAL)),
        ),
        '[{"style": "factual", "question": "Who wrote Sootlantern?", "answer": "Orla Vennick", "requires": [1]}, '
        '{"style": "multi_hop", "question": "From which year is the other play by the author of Sootlantern, Glasheron?", '
        '"answer": "1974", "requires": [1, 3, 4]}, '
        '{"style": "numerical", "question": "How many years lie between Sootlantern and Glasheron?", "answer": 13, '
        '"requires": [2, 4]}]',
    ),
)
_ANSWERED_BY = (QuestionStyle.FACTUAL, QuestionStyle.MULTI_HOP)
"""Styles whose answers are taken from a statement, word for word."""


class QuestionDefect(StrEnum):
    """Why what a teacher wrote is no question over its slice."""

    UNREADABLE = "fas_plan_unreadable"
    RESTS_ON_NOTHING = "fas_plan_rests_on_nothing"
    ANSWER_LEAKED = "fas_plan_answer_leaked"
    ANSWER_NOT_STATED = "fas_plan_answer_not_stated"


@dataclass(frozen=True, slots=True)
class SliceConfig:
    """How slices are drawn and asked about: entities of each and statements at most, the styles, and tokens of the questions over one."""

    entities: int = 3
    statements: int = 24
    styles: tuple[QuestionStyle, ...] = tuple(QuestionStyle)
    max_tokens: int = 1_024
    tries: int = 2


@dataclass(frozen=True, slots=True)
class WrittenQuestion:
    """A question over a slice, its answer, and the statements that it rests on."""

    style: QuestionStyle
    question: str
    answer: str
    required: tuple[Statement, ...]

    @property
    def assignment(self) -> Assignment:
        """The question for whoever reasons on it."""
        task = Task(digest(["slice", self.question, self.answer]), "slice", self.question, (self.answer,))
        known = tuple(f"{statement.entity}: {statement.text}" for statement in self.required)
        return Assignment(task, known, tuple(dict.fromkeys(statement.source for statement in self.required)))

    @property
    def secret(self) -> str | None:
        """What no search may hold: the answer, or None where that is a number that stands for nothing."""
        return None if self.style is QuestionStyle.NUMERICAL else self.answer


class _Row(BaseModel):
    style: QuestionStyle
    question: str = Field(min_length=1)
    answer: str | int | float
    requires: list[int]


_ROW, _ROWS = TypeAdapter(_Row), TypeAdapter(Annotated[list[_Row], Field(min_length=1)])


def write_questions(
    memory: Memory, teacher: Teacher, count: int, config: SliceConfig, seed: int
) -> tuple[list[WrittenQuestion], list[Failure]]:
    """The questions over `count` slices, each once, and what was none."""
    rng = random.Random(seed_from("memory", seed))
    drawn = list(memory.slices(count, config.entities, config.statements, rng))
    read, before = ask_readable(
        teacher, [_request(statements, config) for statements in drawn], lambda place, reply: _read(reply, drawn[place]), config.tries
    )
    questions: dict[str, WrittenQuestion] = {}
    failures = before
    for rows in read:
        for row in [rows] if isinstance(rows, Failure) else rows:
            if isinstance(row, Failure):
                failures.append(row)
            else:
                questions.setdefault(plain(row.question), row)
    return list(questions.values()), failures


def read_questions(text: str, statements: Sequence[Statement]) -> Iterator[WrittenQuestion | Failure]:
    """The questions in a completion, wherever in it they stand as JSON; words around them are passed over."""
    for value in json_values(text):
        for row in value if isinstance(value, list) else [value]:
            yield _question(row, statements)


def _read(reply: Completion, statements: Sequence[Statement]) -> list[WrittenQuestion | Failure] | Failure:
    """What a reply holds; a failure where it holds no question at all."""
    found = list(read_questions(reply.text, statements))
    if any(isinstance(row, WrittenQuestion) for row in found):
        return found
    return next((row for row in found if isinstance(row, Failure)), None) or _failure(
        QuestionDefect.UNREADABLE, "the reply holds no question as JSON", reply.text
    )


def _request(statements: Sequence[Statement], config: SliceConfig) -> Request:
    listed = "\n".join(f"{number}. {_shown(statement)}" for number, statement in enumerate(statements, start=1))
    asked = _ASK.format(statements=listed, count=len(config.styles), styles=", ".join(config.styles))
    return user(asked, max_tokens=config.max_tokens, form=form_of(_ROWS), examples=_EXAMPLES)


def _shown(statement: Statement) -> str:
    time = f" ({statement.time})" if statement.time and statement.relation else ""
    return f"{statement.entity}: {statement.text}{time}"


def _question(row: Any, statements: Sequence[Statement]) -> WrittenQuestion | Failure:
    if isinstance(row, dict) and isinstance(row.get("style"), str):
        row = {**row, "style": row["style"].strip().lower().replace("-", "_")}
    try:
        read = _ROW.validate_python(row)
    except ValidationError as error:
        return _failure(QuestionDefect.UNREADABLE, f"what the teacher wrote is no question: {first_error(error)}", row)
    question, answer = read.question.strip(), str(read.answer).strip()
    if not question or not answer:
        return _failure(QuestionDefect.UNREADABLE, "the question or its answer is empty", row)
    if not read.requires or not all(1 <= number <= len(statements) for number in read.requires):
        return _failure(QuestionDefect.RESTS_ON_NOTHING, "the question rests on no statement, or on one that is not there", row)
    written = WrittenQuestion(read.style, question, answer, tuple(dict.fromkeys(statements[number - 1] for number in read.requires)))
    if written.secret is not None and mentions(question, answer):
        return _failure(QuestionDefect.ANSWER_LEAKED, "the question names its answer", row)
    if read.style in _ANSWERED_BY and not any(mentions(f"{known.entity} {known.text}", answer) for known in written.required):
        return _failure(QuestionDefect.ANSWER_NOT_STATED, "no statement that the question rests on holds its answer", row)
    return written


def _failure(defect: QuestionDefect, reason: str, row: Any) -> Failure:
    return Failure("synth", defect, reason, {"text": row})
