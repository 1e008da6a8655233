"""First-order actions from the memory alone, without a graph: a teacher writes questions over slices and plans for them.

The teacher sees the slice as numbered statements and writes one question per style, with the numbers of the statements it rests on. It then
plans, seeing only the question and the tools. A judge, shown the required knowledge, says whether the first action would acquire it
(knowledge alignment, AgentFounder, arXiv 2509.13310, section 2.2). If there is a search it is run: a plan is kept if the first hit is a
required document and the judge accepts. Knowledge that only tools brought is left to the judge.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from rl.call_arguments import as_object, as_text
from rl.renderers.base import Schema
from rl.tools import ToolError
from rl.tools.arguments import ArgumentsSchema
from synth.fas.memory import Memory, Origin, Plan, QuestionStyle, SliceConfig, SliceQuestion, Statement
from synth.fas.plans import INDEX, Misalignment, PlanJudge, PlanVerdict, example_of, judge_request, judged_reason, rejected
from synth.fas.reasoning import Assignment
from synth.questions.paths import Retrieve
from synth.questions.text_comparison import mentions, plain
from synth.teachers.teacher import BLANK, QUESTION, Teacher, ask_readable, json_values, read_json
from warehouse.digests import digest, seed_from
from warehouse.records import ANSWER, Completion, Document, Example, Failure, Request, Task, user
from warehouse.replies import form_of
from warehouse.settings import first_error

_ASK_QUESTIONS = """Known statements:
{statements}

Write {count} questions that these statements answer, one of each style: {styles}. Reply with a JSON list of them and nothing else:
[{{"style": "...", "question": "...", "answer": "...", "requires": [numbers of statements]}}, ...]
"requires" are the statements that the question rests on. The answer is as short as can be. No question may name its answer, and none may
speak of the statements."""
_QUESTION_EXAMPLES = (
    (
        _ASK_QUESTIONS.format(
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
"""Styles whose answers are quoted from a statement."""


class QuestionDefect(StrEnum):
    """Why a reply is no question over its slice."""

    UNREADABLE = "fas_plan_unreadable"
    RESTS_ON_NOTHING = "fas_plan_rests_on_nothing"
    ANSWER_LEAKED = "fas_plan_answer_leaked"
    ANSWER_NOT_STATED = "fas_plan_answer_not_stated"


@dataclass(frozen=True, slots=True)
class WrittenQuestion:
    """A question over a slice, its answer, and the statements it rests on."""

    style: QuestionStyle
    question: str
    answer: str
    required: tuple[Statement, ...]

    @property
    def assignment(self) -> Assignment:
        task = Task(digest(["slice", self.question, self.answer]), "slice", self.question, (self.answer,))
        known = tuple(f"{statement.entity}: {statement.text}" for statement in self.required)
        return Assignment(task, known, tuple(dict.fromkeys(statement.source for statement in self.required)))

    @property
    def secret(self) -> str | None:
        """What no search may contain: the answer, or None for a number."""
        return None if self.style is QuestionStyle.NUMERICAL else self.answer


class _Row(BaseModel):
    style: QuestionStyle
    question: str = Field(min_length=1)
    answer: str | int | float
    requires: list[int]


_QUESTION_ROW, _ROWS = TypeAdapter(_Row), TypeAdapter(Annotated[list[_Row], Field(min_length=1)])


def write_questions(
    memory: Memory, teacher: Teacher, count: int, config: SliceConfig, seed: int
) -> tuple[list[WrittenQuestion], list[Failure]]:
    """Distinct questions over `count` slices, and failures."""
    rng = random.Random(seed_from("memory", seed))
    drawn = list(memory.slices(count, config.entities, config.statements, rng))
    read, before = ask_readable(
        teacher,
        [_question_request(statements, config) for statements in drawn],
        lambda place, reply: _read_reply(reply, drawn[place]),
        config.tries,
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
    """The questions in a completion, wherever they appear as JSON."""
    for value in json_values(text):
        for row in value if isinstance(value, list) else [value]:
            yield _question(row, statements)


def _read_reply(reply: Completion, statements: Sequence[Statement]) -> list[WrittenQuestion | Failure] | Failure:
    found = list(read_questions(reply.text, statements))
    if any(isinstance(row, WrittenQuestion) for row in found):
        return found
    return next((row for row in found if isinstance(row, Failure)), None) or _failure(
        QuestionDefect.UNREADABLE, "the reply holds no question as JSON", reply.text
    )


def _question_request(statements: Sequence[Statement], config: SliceConfig) -> Request:
    listed = "\n".join(f"{number}. {_shown(statement)}" for number, statement in enumerate(statements, start=1))
    asked = _ASK_QUESTIONS.format(statements=listed, count=len(config.styles), styles=", ".join(config.styles))
    return user(asked, max_tokens=config.max_tokens, form=form_of(_ROWS), examples=_QUESTION_EXAMPLES)


def _shown(statement: Statement) -> str:
    time = f" ({statement.time})" if statement.time and statement.relation else ""
    return f"{statement.entity}: {statement.text}{time}"


def _question(row: Any, statements: Sequence[Statement]) -> WrittenQuestion | Failure:
    if isinstance(row, dict) and isinstance(row.get("style"), str):
        row = {**row, "style": row["style"].strip().lower().replace("-", "_")}
    try:
        read = _QUESTION_ROW.validate_python(row)
    except ValidationError as error:
        return _failure(QuestionDefect.UNREADABLE, f"the reply is no question: {first_error(error)}", row)
    question, answer = read.question.strip(), str(read.answer).strip()
    if not question or not answer:
        return _failure(QuestionDefect.UNREADABLE, "the question or its answer is empty", row)
    if not read.requires or not all(1 <= number <= len(statements) for number in read.requires):
        return _failure(QuestionDefect.RESTS_ON_NOTHING, "the question cites no statement, or one that does not exist", row)
    written = WrittenQuestion(read.style, question, answer, tuple(dict.fromkeys(statements[number - 1] for number in read.requires)))
    if written.secret is not None and mentions(question, answer):
        return _failure(QuestionDefect.ANSWER_LEAKED, "the question names its answer", row)
    if read.style in _ANSWERED_BY and not any(mentions(f"{known.entity} {known.text}", answer) for known in written.required):
        return _failure(QuestionDefect.ANSWER_NOT_STATED, "no cited statement contains the answer", row)
    return written


def _failure(defect: QuestionDefect, reason: str, row: Any) -> Failure:
    return Failure("synth", defect, reason, {"text": row})


_PLAN = """Question: {question}

Tools: {tools}

Plan how to find the answer with these tools; what they will bring is not known yet. Reply with one line of JSON and nothing else: what to
find out first and what then, the first tool, and its argument.
{{"plan": ["...", "..."], "tool": "...", "arguments": "..."}}"""
SEARCH = "search"
_PLAN_EXAMPLES = (
    (
        _PLAN.format(question=QUESTION, tools=SEARCH),
        '{"plan": ["who wrote Sootlantern", "in which town that author grew up"], "tool": "search", "arguments": "author of Sootlantern"}',
    ),
)


class PlanDefect(StrEnum):
    """Why a reply is no plan."""

    UNREADABLE = "fas_plan_no_plan"
    UNKNOWN_TOOL = "fas_plan_unknown_tool"
    WRONG_ARGUMENTS = "fas_plan_wrong_arguments"


class _PlanRow(BaseModel):
    plan: list[str] = Field(min_length=1)
    tool: str = Field(min_length=1)
    arguments: str | dict[str, object]


_PLAN_ROW = TypeAdapter(_PlanRow)


@dataclass(frozen=True, slots=True)
class MemoryPlans:
    """Plan examples, failures, and all questions over slices."""

    examples: list[Example]
    failures: list[Failure]
    questions: list[WrittenQuestion]


def build_memory_plans(
    memory: Memory,
    teacher: Teacher,
    judge: PlanJudge,
    count: int,
    config: SliceConfig,
    seed: int,
    tools: Sequence[Schema] = (),
    retrieve: Retrieve | None = None,
    max_plan_tokens: int = 256,
    wheel_turn: int = 1,
) -> MemoryPlans:
    """Plans over `count` slices. `tools` defaults to a search; `retrieve` gives that search's first hit."""
    questions, failures = write_questions(memory, teacher, count, config, seed)
    parameters = {str(tool["function"]["name"]): tool["function"].get("parameters") or {} for tool in tools} or {SEARCH: {}}
    offered = "; ".join(f"{tool['function']['name']}: {tool['function'].get('description', '')}" for tool in tools) or SEARCH
    read, before = ask_readable(
        teacher,
        [_plan_request(question, offered, tuple(parameters), max_plan_tokens) for question in questions],
        lambda place, reply: _read_plan(reply, questions[place], parameters),
        config.tries,
    )
    failures += before + [plan for plan in read if isinstance(plan, Failure)]
    planned = [plan for plan in read if not isinstance(plan, Failure)]
    examples, refused = _checked(planned, retrieve, judge, wheel_turn)
    return MemoryPlans(examples, failures + refused, questions)


def _checked(
    planned: Sequence[SliceQuestion], retrieve: Retrieve | None, judge: PlanJudge, wheel_turn: int
) -> tuple[list[Example], list[Failure]]:
    examples: dict[str, Example] = {}
    failures: list[Failure] = []
    verdicts = judge.verdicts([judge_request(question) for question in planned])
    for question, verdict in zip(planned, verdicts, strict=True):
        example, reason = example_of(question, wheel_turn), judged_reason(verdict)
        if retrieve is not None and question.plan.tool == SEARCH:
            shown = _index_verdict(question, retrieve(question.plan.query))
            if shown is not None:
                judge.record("fas_plan", example.id, INDEX, shown)
                reason = shown.reason or reason
        if reason is None:
            examples.setdefault(example.id, example)
        else:
            failures.append(rejected(question, reason, example.id, judge))
    return list(examples.values()), failures


def _index_verdict(question: SliceQuestion, found: Document | None) -> PlanVerdict | None:
    """The search's verdict on a plan; None where no document holds the knowledge."""
    if question.secret is not None and mentions(question.plan.query, question.secret):
        return PlanVerdict(False, Misalignment.ANSWER_GIVEN)
    if found is not None and any(_holds(found, known) for known in question.required):
        return PlanVerdict(True)
    if all(known.origin is Origin.RESULT for known in question.required):
        return None
    return PlanVerdict(False, Misalignment.NO_DOCUMENT if found is None else Misalignment.OTHER_KNOWLEDGE)


def _holds(document: Document, known: Statement) -> bool:
    return document.id == known.source or (known.origin is not Origin.FACT and mentions(document.text, known.text) > 0)


def _plan_request(question: WrittenQuestion, offered: str, names: tuple[str, ...], max_tokens: int) -> Request:
    form = form_of(_PLAN_ROW, tool=names)
    return user(_PLAN.format(question=question.question, tools=offered), max_tokens=max_tokens, form=form, examples=_PLAN_EXAMPLES)


def _read_plan(reply: Completion, question: WrittenQuestion, parameters: Mapping[str, Mapping[str, Any]]) -> SliceQuestion | Failure:
    row = read_json(reply, _PLAN_ROW)
    if isinstance(row, Failure):
        return Failure("synth", PlanDefect.UNREADABLE, f"the reply is no plan: {row.reason}", row.item)
    steps = tuple(step.strip() for step in row.plan if step.strip() not in ("", BLANK))
    argument = row.arguments.strip() if isinstance(row.arguments, str) else json.dumps(row.arguments, ensure_ascii=False)
    if not steps or argument in ("", BLANK):
        return Failure("synth", PlanDefect.UNREADABLE, "the plan or its first action is empty", {"text": reply.text})
    tool = row.tool.strip()
    if tool not in parameters or tool == ANSWER:
        return Failure("synth", PlanDefect.UNKNOWN_TOOL, f"the first action calls {tool!r}, which is not on offer", {"text": reply.text})
    schema = parameters[tool]
    if reason := _misfit(tool, argument, schema):
        return Failure("synth", PlanDefect.WRONG_ARGUMENTS, reason, {"text": reply.text})
    plan = Plan(steps, as_text(argument, schema) if schema else argument, tool)
    return SliceQuestion(question.style, question.question, question.answer, question.required, plan, question.secret, True)


def _misfit(tool: str, argument: str, schema: Mapping[str, Any]) -> str | None:
    if not schema:
        return None
    try:
        ArgumentsSchema(schema, tool).check(as_object(argument, schema))
    except (ValueError, ToolError) as error:
        return f"the first action does not fit {tool}: {error}"
    return None
