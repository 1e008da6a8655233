"""A tool world as data: a SQL schema, rows, and tools that are parametrized SQL statements. `database.py` executes it.

Built-in and teacher-written tools are SQL with comments:

    -- tool: lend
    -- Lend a book to a member.
    -- :book text the number of the book
    -- :member text the number of the member
    UPDATE books SET copies = copies - 1 WHERE book = :book AND copies > 0; -- else: no copy of this book is left
    INSERT INTO loans (book, member) VALUES (:book, :member);

The statements of a call are one transaction. A statement that fails, or an INSERT, UPDATE or DELETE that changes no row, refuses the call
and rolls it back; the policy reads why (`else`, or SQLite's message). A SELECT with `else` is a check: it must return a row. The rows of
the last other SELECT or RETURNING are the result.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rl.tools import ToolError
from warehouse.digests import digest, seed_from
from warehouse.settings import first_error

LONGEST_TEXT = 500
"""Maximum characters of an argument, a description or a message."""
LONGEST_SQL = 4_000
"""Maximum characters of one statement."""
LARGEST_NUMBER = 10**12
MOST_CHARACTERS = 400_000
"""Maximum characters of a whole definition as JSON."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,39}$")]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Value = str | bool | int | float | None
Rows = dict[Name, list[dict[Name, Value]]]
"""Rows by table; a row maps columns to values."""


class Parameter(BaseModel):
    """A named parameter of a tool; an array is bound as JSON text, for `json_each`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Literal["string", "integer", "number", "boolean", "array"]
    description: Text = ""

    @property
    def json_schema(self) -> dict[str, Any]:
        """JSON schema of the parameter, kept short for prompts."""
        items = {"items": {"type": "string"}} if self.type == "array" else {}
        return {"type": self.type, **items, **({"description": self.description} if self.description else {})}

    def bound(self, value: Any) -> Any:
        """Convert an argument for SQLite; JSON may write 2 as 2.0. Raises ToolError if it is too large."""
        if isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
            raise ToolError(f"a number is at most {LARGEST_NUMBER:,}")
        text = json.dumps(value, ensure_ascii=False) if self.type == "array" else value
        if isinstance(text, str) and len(text) > LONGEST_TEXT:
            raise ToolError(f"a text has at most {LONGEST_TEXT} characters")
        return int(value) if self.type == "integer" else text


class Statement(BaseModel):
    """One SQL statement, with the message that the policy reads when it returns or changes no row."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sql: str = Field(max_length=LONGEST_SQL, pattern=r"(?i)^\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|VALUES)\b")
    otherwise: Text = ""


class ToolDefinition(BaseModel):
    """A tool: description, parameters (all required) and statements."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    description: str = Field(min_length=1, max_length=LONGEST_TEXT)
    parameters: dict[Name, Parameter] = Field(default={}, max_length=8)
    statements: list[Annotated[Statement, BeforeValidator(lambda given: {"sql": given} if isinstance(given, str) else given)]] = Field(
        min_length=1, max_length=12
    )

    @cached_property
    def json_schema(self) -> dict[str, Any]:
        """JSON schema of the tool's arguments."""
        properties = {name: each.json_schema for name, each in self.parameters.items()}
        return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class WorldDefinition(BaseModel):
    """A complete tool world."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    domain: Name
    tables: str = Field(min_length=1, max_length=20_000)
    """CREATE TABLE and CREATE INDEX statements."""
    tools: dict[Name, ToolDefinition] = Field(max_length=20)
    rows: Rows = {}

    @property
    def as_data(self) -> dict[str, Any]:
        """The definition as JSON-serializable data, without defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @property
    def digest(self) -> str:
        """Digest of the definition, by which a task proves that it runs in the world it was made for."""
        return digest(self.as_data)


def read_definition(data: object) -> WorldDefinition:
    """Parse a definition; its SQL is checked when a database is created from it.

    Raises:
        ValueError: `data` has another shape or is too large.
    """
    try:
        if len(json.dumps(data, ensure_ascii=False, allow_nan=False)) > MOST_CHARACTERS:
            raise ValueError(f"a world has at most {MOST_CHARACTERS:,} characters")
        return WorldDefinition.model_validate(data)
    except ValidationError as error:
        raise ValueError(first_error(error)) from error
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


class Populate(Protocol):
    """Creates the initial rows of a world; deterministic in generator state and size."""

    def __call__(self, rng: Random, size: int) -> Rows: ...


@dataclass(frozen=True)
class GeneratedWorld:
    """A kind of world whose rows follow from a seed; `size` is roughly the number of rows of its largest tables.

    `tools` is SQL in the format of this module's docstring.
    """

    domain: str
    tables: str
    tools: str
    populate: Populate

    def definition(self, seed: int, size: int) -> WorldDefinition:
        rows = self.populate(Random(seed_from("tool world", self.domain, seed, size)), size)
        return WorldDefinition(domain=self.domain, tables=self.tables.strip(), tools=self._tools, rows=rows)

    @cached_property
    def _tools(self) -> dict[str, ToolDefinition]:
        return {name: ToolDefinition.model_validate(written) for name, written in written_tools(self.tools)}


_TOOL = re.compile(r"^[ \t]*--[ \t]*tool:[ \t]*(\S+)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_PARAMETER = re.compile(r"^[:@$](\w+)[\s:(\-]+([a-z]+)\b(?:\[\])?[)\s,:\-]*(.*)$", re.IGNORECASE)
_COMMENT = re.compile(r"\s*--[ \t]*(.*)")
_ELSE = re.compile(r"[ \t]*--[ \t]*else:?[ \t]*(.*)", re.IGNORECASE)
_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("text", "string", "varchar", "char", "date", "datetime", "time", "str"), "string"),
    **dict.fromkeys(("integer", "int", "bigint"), "integer"),
    **dict.fromkeys(("number", "real", "float", "double", "decimal", "numeric"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list"), "array"),
}


def json_type(sql_type: str) -> str:
    """JSON type of a SQL type name; `string` if unknown."""
    return _TYPES.get(re.split(r"\W", sql_type.strip().lower())[0], "string")


def written_tools(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Parse tools written as SQL with comments into names and data, in order, without validation."""
    parts = _TOOL.split(text)
    return list(zip(parts[1::2], map(_written_tool, parts[2::2]), strict=True))


def _written_tool(body: str) -> dict[str, Any]:
    described: list[str] = []
    parameters: dict[str, Any] = {}
    statements: list[dict[str, str]] = []
    for chunk in split_statements(body):
        if statements and (found := _ELSE.match(chunk)):
            statements[-1]["otherwise"] = found[1].strip()
            chunk = chunk[found.end() :]
        while comment := _COMMENT.match(chunk):
            words, chunk = comment[1].strip(), chunk[comment.end() :]
            if parameter := _PARAMETER.match(words):
                parameters[parameter[1]] = {"type": json_type(parameter[2]), "description": parameter[3].strip()}
            elif not statements and words:
                described.append(words)
        if sql := chunk.strip().rstrip(";").strip():
            statements.append({"sql": sql})
    return {"description": " ".join(described), "parameters": parameters, "statements": statements}


def split_statements(text: str) -> list[str]:
    """Split a SQL text into statements, each with the comments before it; the last may lack its semicolon."""
    found, start = list[str](), 0
    for semicolon in re.finditer(";", text):
        if sqlite3.complete_statement(text[start : semicolon.end()]):
            found.append(text[start : semicolon.end()])
            start = semicolon.end()
    return [*found, text[start:]] if text[start:].strip() else found
