"""Requests to a teacher for the parts of a tool world, and the schemas of its replies.

The order follows AutoForge (arXiv 2512.22857), which turns a description into an environment: tables, example rows, tools, tasks. Tables
and tools are SQL, which small models write better than a custom notation. Keys and references are numbered and offered by code; requests
for questions list what the text must contain. Replies are interpreted in `world_writer.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter

from rl.envs.tool_world.database import NOW
from rl.envs.tool_world.definition import Value, split_statements
from synth.worlds.layout import Column, Kind
from synth.worlds.solutions import WorldSolution
from synth.worlds.writing_config import STAGE, WrittenWorldsConfig
from warehouse.digests import seed_from
from warehouse.records import Failure, Request, user
from warehouse.replies import split_reasoning


class WorldDefect(StrEnum):
    NO_SQL = "no_sql"
    WRONG_TABLES = "wrong_tables"
    WRONG_ROWS = "wrong_rows"
    MALFORMED_TOOL = "malformed_tool"
    WRONG_SQL = "wrong_sql"
    TOOL_FAILED = "tool_failed"
    DOUBLE = "double"
    NOT_SAID = "not_said"
    GIVEN_AWAY = "given_away"
    NOT_IN_WORDS = "not_in_words"
    CALL_REFUSED = "call_refused"
    GOAL_NOT_REACHED = "goal_not_reached"
    NOT_TOLD = "not_told"
    NEEDLESS_CALL = "needless_call"
    TOOL_UNUSED = "tool_unused"
    NO_TASK = "no_task"


@dataclass(frozen=True, slots=True)
class Flaw:
    """A defect of a proposal; `reason` is shown to its writer."""

    kind: WorldDefect
    reason: str

    def failure(self, world: str, item: Mapping[str, Any]) -> Failure:
        return Failure(STAGE, self.kind, self.reason[:500], {"world": world, **item})


class PlannedTool(BaseModel):
    """A planned tool; `what` is one of `layout.operations`."""

    what: str
    name: str = Field(max_length=60)
    does: str = Field(min_length=1, max_length=200)


class ToolPlan(BaseModel):
    tools: list[PlannedTool] = Field(min_length=1, max_length=40)


class ProposedRows(BaseModel):
    """Reply schema for rows of one table, each with values in the requested order."""

    rows: list[list[Value]] = Field(min_length=1, max_length=80)


class ProposedQuestion(BaseModel):
    question: str = Field(min_length=1, max_length=600)


SURE = 0.2
"""Maximum temperature for tables and tools, which must be correct; rows and questions must vary."""

VERBS = {Kind.FIND: "Find|List|Show", Kind.CHANGE: "Add|Book|Lend|Register|Change|Move|Renew|Set|Remove|Cancel|Return"}
"""Verbs that a tool's purpose may begin with; with an open verb, the constrained form yields invented words."""

PLAN, ROWS, QUESTION = TypeAdapter(ToolPlan), TypeAdapter(ProposedRows), TypeAdapter(ProposedQuestion)

TABLES_SYSTEM = """You design the SQLite database of a small service from its description. Write 3 CREATE TABLE statements, at most 4. \
First one table for each kind of thing and of person that the description names; each has a key, such as book_id INTEGER PRIMARY KEY, a \
name or title, and the few columns that the description needs. Last the table of what happens between them: it has a key of its own, \
refers to the keys of the others, as in book_id INTEGER NOT NULL REFERENCES books(book_id), and has its day, hour or state. The service, \
its desk and its actions are no tables. Reply with one sql block."""

PLAN_SYSTEM = """You plan the tools of the clerk who serves people. You get a list of what tools can do. Choose from it what people of \
this service want most, each once. Give each tool a name of two or three words joined by underscores, and say what the clerk does for a \
person in one short sentence that begins with a verb, in the words of the service and not of a database. Reply with JSON."""

TOOL_SYSTEM = """You write tools of a service in SQLite. A tool is SQL whose values from the caller are named parameters, such as :name. \
Name a parameter after its column; where a column has a new value, name it :new_column. A tool that finds is one SELECT with the columns \
that matter, ids among them. A tool that changes is one or more of INSERT, UPDATE and DELETE: leave out the key that SQLite numbers, find \
rows by their id, and write conditions that must hold into WHERE. Reply with one sql block."""

ROWS_SYSTEM = f"""You fill the tables of a service with rows as they are in life. All names are different, and so are the other values \
of most rows. Days are written as 2026-01-20, times as 14:30; today is {NOW[:10]}. Reply with JSON."""

WORDS_SYSTEM = """You are a person who comes to a service and speaks to the clerk. Say what you want in one natural sentence, in the first \
person. It holds every detail exactly as it is written, and no other names, numbers or days. Reply with JSON."""
ASKS = r"(What|When|Which|Who|Where|How|Can you tell me|Could you tell me|Please tell me|I would like to know)"
WANTS = r"(Please|I would like to|I want to|Can you|Could you|I need to)"
"""Beginnings of questions that ask for something, and of those that want something done."""


@dataclass(frozen=True, slots=True)
class WorldRequests:
    description: str
    config: WrittenWorldsConfig
    seed: int

    def tables(self) -> Request:
        return self._asked(self.description, TABLES_SYSTEM, "tables")

    def rows(self, tables: str, columns: Sequence[Column], keys: Mapping[str, Mapping[Value, str]], count: int) -> Request:
        """Request `count` rows of one table; `keys` maps the keys of each referenced table to the name of the row."""
        table, asked = columns[0].table, [column for column in columns if not column.numbered]
        parents = dict.fromkeys(column.parent for column in asked if column.parent)
        known = "".join(f"\nRows of {name}: {'; '.join(f'{key} {text}'.strip() for key, text in keys[name].items())}" for name in parents)
        form = _form_of("rows", _row_form(asked, keys), count)
        fields = ", ".join(column.name for column in asked)
        text = f"{self.description}\n\n{tables}\n{known}\n\nGive {count} rows of {table}, each as [{fields}]."
        return self._asked(text, ROWS_SYSTEM, "records", table, form=form)

    def plan(self, choices: Sequence[str], kind: Kind, count: int) -> Request:
        """Request names and purposes of `count` tools of one kind, chosen from `choices`."""
        sentence = {"type": "string", "pattern": rf"^({VERBS[kind]}) [a-z ]{{8,90}}\.$"}
        name = {"type": "string", "pattern": "^[a-z]+(_[a-z]+){1,3}$"}
        properties = {"what": {"enum": list(choices)}, "name": name, "does": sentence}
        listed = "\n".join(f"- {choice}" for choice in choices)
        text = f"{self.description}\n\nWhat tools can do:\n{listed}\n\nChoose {count}."
        return self._asked(text, PLAN_SYSTEM, "plan", kind, form=_form_of("tools", _object(properties), count))

    def tool(self, tables: str, planned: PlannedTool) -> Request:
        return self._asked(
            f"{tables}\n\nThe tool {planned.name}: {planned.does}\nIt is to {planned.what}.", TOOL_SYSTEM, "tool", planned.name
        )

    def words(self, service: str, solution: WorldSolution, does: str, number: int) -> Request:
        asks = solution.answer is not None
        wish = f"You want to know the {solution.asked}." if asks else f"You want the clerk to do this: {does}"
        details = "\n".join(f"- {detail}" for detail in solution.details)
        begins = {"type": "string", "pattern": f"^{ASKS if asks else WANTS} .{{8,300}}[.?]$"}
        form = json.dumps(_object({"question": begins}))
        return self._asked(f"The service: a {service}\n{wish}\nDetails:\n{details}", WORDS_SYSTEM, "words", number, form=form)

    def _asked(self, text: str, system: str, *part: Any, form: str | None = None) -> Request:
        temperature = self.config.temperature if system in (ROWS_SYSTEM, WORDS_SYSTEM) else min(SURE, self.config.temperature)
        return user(text, system, self.config.max_tokens, temperature, seed_from(self.seed, *part), form=form)


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False}


def _form_of(name: str, item: dict[str, Any], count: int) -> str:
    return json.dumps(_object({name: {"type": "array", "minItems": count, "maxItems": count, "items": item}}))


def _row_form(columns: Sequence[Column], keys: Mapping[str, Mapping[Value, str]]) -> dict[str, Any]:
    values: list[dict[str, Any]] = []
    for column in columns:
        if column.parent:
            values.append({"enum": list(keys[column.parent])})
        elif column.options:
            values.append({"enum": list(column.options)})
        elif column.sql_type == "DATE":
            values.append({"type": "string", "pattern": "^2026-[01][0-9]-[0-3][0-9]$"})
        else:
            values.append({"type": column.type})
    return {"type": "array", "prefixItems": values, "items": False, "minItems": len(values), "maxItems": len(values)}


_FENCED = re.compile(r"```(?:sql|sqlite)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_COMMENTS = re.compile(r"\A(?:\s*--[^\n]*(?:\n|\Z)|\s*/\*.*?\*/)*\s*", re.DOTALL)


def sql_in(reply: str) -> str:
    """SQL of a reply: its fenced blocks, else the whole text if it contains statements; empty if there is none."""
    text = split_reasoning(reply)[1]
    if blocks := _FENCED.findall(text):
        return "\n".join(blocks).strip()
    return text.strip() if re.search(r"^\s*(?:CREATE|INSERT|SELECT|UPDATE|DELETE|WITH|--)", text, re.MULTILINE | re.IGNORECASE) else ""


def statements_of(sql: str, *beginnings: str) -> list[str]:
    """Statements that begin with one of these words, without leading comments."""
    found = (_COMMENTS.sub("", statement).strip() for statement in split_statements(sql))
    return [statement for statement in found if statement.upper().startswith(beginnings)]
