"""First-order actions from a memory alone, with no graph behind it: a teacher plans for questions over slices of it.

Each question gets one plan with a first action. Whoever plans sees the question and the tools and nothing of the knowledge; whoever judges
sees the knowledge that the question rests on, and says whether the action would acquire it (knowledge alignment, AgentFounder, arXiv
2509.13310, section 2.2). Where there is a search, it is run too: a plan is kept if the first hit is a document that the question rests on
and the judge accepts. Where the knowledge was brought by tools and no document holds it, the judge alone decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter

from rl.renderers.arguments import as_object, as_text
from rl.renderers.base import Schema
from rl.tools import ToolError
from rl.tools.arguments import ArgumentsSchema
from synth.fas.memory import Memory, Origin, Statement
from synth.fas.plan_judge import INDEX, PlanJudge, PlanVerdict
from synth.fas.plans import Misalignment, example_of, judge_request, judged_reason, rejected
from synth.fas.slice_questions import SliceConfig, WrittenQuestion, write_questions
from synth.fas.slices import Plan, SliceQuestion
from synth.questions.paths import Retrieve
from synth.questions.text_comparison import mentions
from synth.teachers.asking import ask_readable
from synth.teachers.teacher import Teacher, read_json
from synth.teachers.worked_examples import BLANK, QUESTION
from warehouse.forms import form_of
from warehouse.records import ANSWER, Completion, Document, Example, Failure, Request, user

_PLAN = """Question: {question}

Tools: {tools}

Plan how to find the answer with these tools; what they will bring is not known yet. Reply with one line of JSON and nothing else: what to
find out first and what then, the first tool, and its argument.
{{"plan": ["...", "..."], "tool": "...", "arguments": "..."}}"""
SEARCH = "search"
_EXAMPLES = (
    (
        _PLAN.format(question=QUESTION, tools=SEARCH),
        '{"plan": ["who wrote Sootlantern", "in which town that author grew up"], "tool": "search", "arguments": "author of Sootlantern"}',
    ),
)


class PlanDefect(StrEnum):
    """Why what a teacher wrote is no plan."""

    UNREADABLE = "fas_plan_no_plan"
    UNKNOWN_TOOL = "fas_plan_unknown_tool"
    WRONG_ARGUMENTS = "fas_plan_wrong_arguments"


class _Row(BaseModel):
    plan: list[str] = Field(min_length=1)
    tool: str = Field(min_length=1)
    arguments: str | dict[str, object]


_ROW = TypeAdapter(_Row)


@dataclass(frozen=True, slots=True)
class MemoryPlans:
    """Plan examples, what was rejected, and the questions over slices, whatever became of their plans."""

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
    """Plans over `count` slices. `tools` are those on offer, by default a search alone; `retrieve` is the first hit of that search."""
    questions, failures = write_questions(memory, teacher, count, config, seed)
    parameters = {str(tool["function"]["name"]): tool["function"].get("parameters") or {} for tool in tools} or {SEARCH: {}}
    offered = "; ".join(f"{tool['function']['name']}: {tool['function'].get('description', '')}" for tool in tools) or SEARCH
    read, before = ask_readable(
        teacher,
        [_request(question, offered, tuple(parameters), max_plan_tokens) for question in questions],
        lambda place, reply: _read(reply, questions[place], parameters),
        config.tries,
    )
    failures += before + [plan for plan in read if isinstance(plan, Failure)]
    planned = [plan for plan in read if not isinstance(plan, Failure)]
    examples, refused = _checked(planned, retrieve, judge, wheel_turn)
    return MemoryPlans(examples, failures + refused, questions)


def _checked(
    planned: Sequence[SliceQuestion], retrieve: Retrieve | None, judge: PlanJudge, wheel_turn: int
) -> tuple[list[Example], list[Failure]]:
    """The plans that the judge accepts and, where it can be asked, the search too; what each says is recorded."""
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
    """What the first search says of the plan by what it brings; None where the knowledge is in no document that it could bring."""
    if question.secret is not None and mentions(question.plan.query, question.secret):
        return PlanVerdict(False, Misalignment.ANSWER_GIVEN)
    if found is not None and any(_holds(found, known) for known in question.required):
        return PlanVerdict(True)
    if all(known.origin is Origin.RESULT for known in question.required):
        return None
    return PlanVerdict(False, Misalignment.NO_DOCUMENT if found is None else Misalignment.OTHER_KNOWLEDGE)


def _holds(document: Document, known: Statement) -> bool:
    return document.id == known.source or (known.origin is not Origin.FACT and mentions(document.text, known.text) > 0)


def _request(question: WrittenQuestion, offered: str, names: tuple[str, ...], max_tokens: int) -> Request:
    form = form_of(_ROW, tool=names)
    return user(_PLAN.format(question=question.question, tools=offered), max_tokens=max_tokens, form=form, examples=_EXAMPLES)


def _read(reply: Completion, question: WrittenQuestion, parameters: Mapping[str, Mapping[str, Any]]) -> SliceQuestion | Failure:
    """The plan in a reply; `parameters` are the schemas of the arguments of the tools that there are, by their names."""
    row = read_json(reply, _ROW)
    if isinstance(row, Failure):
        return Failure("synth", PlanDefect.UNREADABLE, f"what the teacher wrote is no plan: {row.reason}", row.item)
    steps = tuple(step.strip() for step in row.plan if step.strip() not in ("", BLANK))
    argument = row.arguments.strip() if isinstance(row.arguments, str) else json.dumps(row.arguments, ensure_ascii=False)
    if not steps or argument in ("", BLANK):
        return Failure("synth", PlanDefect.UNREADABLE, "the plan or its first action is empty", {"text": reply.text})
    tool = row.tool.strip()
    if tool not in parameters or tool == ANSWER:
        return Failure(
            "synth", PlanDefect.UNKNOWN_TOOL, f"the first action calls {tool!r}, which is none of the tools", {"text": reply.text}
        )
    schema = parameters[tool]
    if reason := _misfit(tool, argument, schema):
        return Failure("synth", PlanDefect.WRONG_ARGUMENTS, reason, {"text": reply.text})
    plan = Plan(steps, as_text(argument, schema) if schema else argument, tool)
    return SliceQuestion(question.style, question.question, question.answer, question.required, plan, question.secret, True)


def _misfit(tool: str, argument: str, schema: Mapping[str, Any]) -> str | None:
    """What the tool's schema, where it has one, says against the argument."""
    if not schema:
        return None
    try:
        ArgumentsSchema(schema, tool).check(as_object(argument, schema))
    except (ValueError, ToolError) as error:
        return f"the first action does not fit {tool}: {error}"
    return None
