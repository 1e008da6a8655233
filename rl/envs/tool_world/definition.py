"""A written world: tables, tools and first records as data, which a model may have written and which is read without importing anything.

A tool is written as `steps`, which are carried out here one after the other (`steps.py`), or as `code`: Python that only the sandbox ever
runs (`written.py`). Everything is bounded, for a definition comes with a task, and a task may come from anywhere:

    {"domain": "library", "tables": {"books": {"fields": {"title": {"type": "text"}, "copies": {"type": "integer"}}}},
     "tools": {"copies_of": {"description": "How many copies are there?", "parameters": {"book": {"type": "text"}},
       "steps": [{"op": "get", "table": "books", "key": "{book}", "name": "found"}], "returns": "{found.copies}"}},
     "records": {"books": {"B1": {"title": "Dune", "copies": 2}}}}

A value of a step is a literal, a text with names in braces, or a sum or difference of two values. A text that is one name in braces alone
is that name's value with its type; a record that was found has its fields behind a point, and its key as `key`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from eval.graders.state import State
from warehouse.digests import digest
from warehouse.settings import first_error

MOST_RECORDS = 500
"""Records of a table at any time."""
LONGEST_TEXT = 500
"""Characters of a text in a record, of an argument, and of a key."""
MOST_CHARACTERS = 400_000
"""Of a whole definition as JSON."""
DEEPEST_VALUE = 6
"""Lists and tables within each other in a value."""
MOST_TEXTS = 40
"""Texts in the values of one step."""
_LIST = ""
"""Stands for the table of a name that holds a list of records."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Kind = Literal["text", "integer", "number", "boolean"]
_JSON_TYPES = {"text": "string", "integer": "integer", "number": "number", "boolean": "boolean"}
_TYPES: dict[str, tuple[type, ...]] = {"text": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
LARGEST_NUMBER = 10**12
PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)(?:\.([a-z][a-z0-9_]*))?\}")
KEY = re.compile(r"[^/\x00-\x1f]{1,500}")


class Typed(BaseModel):
    """A field of a record, or an argument: its type, and the texts that it may be where they are few."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Kind
    description: Text = ""
    one_of: list[Text] = Field(default=[], max_length=20)

    def takes(self, value: Any) -> bool:
        """Whether a value is of the type and, where they are named, one of the texts."""
        if type(value) not in _TYPES[self.type]:
            return False
        if isinstance(value, str):
            return len(value) <= LONGEST_TEXT and (not self.one_of or value in self.one_of)
        return abs(value) <= LARGEST_NUMBER

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON schema of an argument."""
        found: dict[str, Any] = {"type": _JSON_TYPES[self.type]}
        if self.description:
            found["description"] = self.description
        if self.type == "text":
            return {**found, **({"enum": list(self.one_of)} if self.one_of else {"maxLength": LONGEST_TEXT})}
        return found if self.type == "boolean" else {**found, "minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER}


class FieldDefinition(Typed):
    """A field of a table; one that `refers_to` another table holds the key of a record there."""

    refers_to: Name | None = None


class TableDefinition(BaseModel):
    """A table: its fields, each of which every record has."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    description: Text = ""
    fields: dict[Name, FieldDefinition] = Field(min_length=1, max_length=12)


TableDefinitions = dict[Name, TableDefinition]


class _Step(BaseModel):
    """What all steps have in common; each says by `values` what is worked out when it is carried out."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FindStep(_Step):
    """The records whose fields have these values, as a list under `name`; nothing to give where there is none."""

    op: Literal["find"]
    table: Name
    where: dict[Name, Any] = Field(default={}, max_length=12)
    name: Name

    @property
    def values(self) -> list[Any]:
        """Those that are looked for."""
        return list(self.where.values())


class GetStep(_Step):
    """The record with a key, under `name`; refused where there is none."""

    op: Literal["get"]
    table: Name
    key: Any
    name: Name

    @property
    def values(self) -> list[Any]:
        """The key."""
        return [self.key]


class RequireStep(_Step):
    """A condition without which the call is refused, in the words of `otherwise`."""

    op: Literal["require"]
    left: Any
    comparison: Literal["=", "!=", "<", "<=", ">", ">="]
    right: Any
    otherwise: Text

    @property
    def values(self) -> list[Any]:
        """Both sides, and the words."""
        return [self.left, self.right, self.otherwise]


class InsertStep(_Step):
    """A new record; refused where its key is taken."""

    op: Literal["insert"]
    table: Name
    key: Any
    record: dict[Name, Any] = Field(max_length=12)

    @property
    def values(self) -> list[Any]:
        """The key and the fields."""
        return [self.key, *self.record.values()]


class UpdateStep(_Step):
    """Other values of some fields of a record."""

    op: Literal["update"]
    table: Name
    key: Any
    set: dict[Name, Any] = Field(min_length=1, max_length=12)

    @property
    def values(self) -> list[Any]:
        """The key and the fields."""
        return [self.key, *self.set.values()]


class DeleteStep(_Step):
    """A record less; refused where another one refers to it."""

    op: Literal["delete"]
    table: Name
    key: Any

    @property
    def values(self) -> list[Any]:
        """The key."""
        return [self.key]


Step = Annotated[FindStep | GetStep | RequireStep | InsertStep | UpdateStep | DeleteStep, Field(discriminator="op")]


class ToolDefinition(BaseModel):
    """A tool: what a policy is told of it, and either `steps` with what they return, or `code` with a function of its name."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    description: str = Field(min_length=1, max_length=LONGEST_TEXT)
    parameters: dict[Name, Typed] = Field(default={}, max_length=8)
    steps: list[Step] | None = Field(default=None, min_length=1, max_length=12)
    returns: Any = None
    code: str | None = Field(default=None, min_length=1, max_length=6_000)

    @model_validator(mode="after")
    def _check_form(self) -> ToolDefinition:
        if (self.steps is None) == (self.code is None):
            raise ValueError("a tool has steps or code, and not both")
        return self

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments, all of which must be given."""
        properties = {name: each.json_schema for name, each in self.parameters.items()}
        return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}

    def defect(self, tables: Mapping[str, TableDefinition]) -> str | None:
        """The first thing that is wrong with its steps, seen without carrying them out; None for code, which is text."""
        known: dict[str, str | None] = dict.fromkeys(self.parameters)
        for number, step in enumerate(self.steps or (), 1):
            why = _defect_of_names(step, tables) or _unknown_name(step.values, known, tables)
            if why is not None:
                return f"step {number}: {why}"
            if isinstance(step, FindStep | GetStep):
                known[step.name] = step.table if isinstance(step, GetStep) else _LIST
        why = _unknown_name([self.returns], known, tables) if self.steps is not None else None
        return None if why is None else f"returns: {why}"


class WorldDefinition(BaseModel):
    """The whole of a written world."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    domain: Name
    tables: TableDefinitions = Field(min_length=1, max_length=8)
    tools: dict[Name, ToolDefinition] = Field(max_length=20)
    records: dict[Name, dict[str, dict[Name, str | bool | int | float]]]

    @property
    def digest(self) -> str:
        """Digest of all of it: tasks prove by it that they are played in the world that they were made for."""
        return digest(self.as_data)

    @property
    def as_data(self) -> dict[str, Any]:
        """The definition as JSON-able data, without what is left out by default."""
        return self.model_dump(mode="json", exclude_defaults=True)


def read_definition(data: object) -> WorldDefinition:
    """The definition that `data` holds.

    Raises:
        ValueError: it is none, is too large, or names what it does not have; its text says which.
    """
    try:
        if len(json.dumps(data, ensure_ascii=False, allow_nan=False)) > MOST_CHARACTERS:
            raise ValueError(f"a world has at most {MOST_CHARACTERS:,} characters")
        read = WorldDefinition.model_validate(data)
    except ValidationError as error:
        raise ValueError(first_error(error)) from error
    except (TypeError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from error
    for name, tool in read.tools.items():
        if why := tool.defect(read.tables):
            raise ValueError(f"tools.{name}: {why}")
    if why := misfit(read.tables, read.records):
        raise ValueError(f"records: {why}")
    return read


def misfit(tables: Mapping[str, TableDefinition], state: State) -> str | None:
    """The first thing of a state that does not fit its tables, with its place; None where all does."""
    if unknown := sorted(state.keys() - tables.keys()):
        return f"there is no table {unknown[0]!r:.100}"
    for name, records in state.items():
        if len(records) > MOST_RECORDS:
            return f"{name} holds more than {MOST_RECORDS} records"
        for key, record in records.items():
            if why := record_misfit(tables[name], key, record):
                return f"{name}/{key:.100}: {why}"
    return dangling(tables, state)


def record_misfit(table: TableDefinition, key: object, record: object) -> str | None:
    """What of a record does not fit its table, or None; what it refers to is not looked at."""
    if not isinstance(key, str) or not KEY.fullmatch(key):
        return "its key is no text of 1 to 500 characters without a slash"
    if not isinstance(record, Mapping) or record.keys() != table.fields.keys():
        return f"it must have the fields {', '.join(table.fields)}"
    for name, field in table.fields.items():
        if not field.takes(record[name]):
            of = f", one of {', '.join(field.one_of)}" if field.one_of else ""
            return f"{name} must be {field.type}{of}, and is {record[name]!r:.80}"
    return None


def dangling(tables: Mapping[str, TableDefinition], state: State) -> str | None:
    """The first field that holds the key of a record which is not there, or None."""
    for name, table in tables.items():
        referring = [(field, each.refers_to) for field, each in table.fields.items() if each.refers_to is not None]
        for key, record in state.get(name, {}).items() if referring else ():
            for field, other in referring:
                if record[field] not in state.get(str(other), {}):
                    return f"{name}/{key:.100}: {field} refers to {record[field]!r:.80}, which is not in {other}"
    return None


def arithmetic(value: Any) -> tuple[str, list[Any]] | None:
    """`plus` or `minus` and its two values, where a value is one of those."""
    if isinstance(value, dict) and len(value) == 1:
        (name, parts), *_ = value.items()
        if name in ("plus", "minus") and isinstance(parts, list) and len(parts) == 2:
            return name, parts
    return None


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """The texts in a value. Raises ValueError where it is nested too deeply."""
    if depth > DEEPEST_VALUE:
        raise ValueError(f"a value has at most {DEEPEST_VALUE} lists and tables within each other")
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each, depth + 1)


def _unknown_name(values: list[Any], known: Mapping[str, str | None], tables: Mapping[str, TableDefinition]) -> str | None:
    """What is wrong with the values: they are bounded, and each name in braces is an argument or what an earlier step found.

    Args:
        known: the table of each name's record; None for arguments, `_LIST` for lists of records.
    """
    try:
        texts = [text for value in values for text in _texts(value)]
    except ValueError as error:
        return str(error)
    if len(texts) > MOST_TEXTS or any(len(text) > LONGEST_TEXT for text in texts):
        return f"its values have at most {MOST_TEXTS} texts of {LONGEST_TEXT} characters"
    found = ((text, *name) for text in texts for name in PLACEHOLDER.findall(text))
    return next((why for text, name, field in found if (why := _defect_of_name(text, name, field, known, tables)) is not None), None)


def _defect_of_name(text: str, name: str, field: str, known: Mapping[str, str | None], tables: Mapping[str, TableDefinition]) -> str | None:
    if name not in known:
        return f"there is no argument or earlier result {name!r}"
    table = known[name]
    if table == _LIST and not PLACEHOLDER.fullmatch(text):
        return f"{name!r} is a list of records, which cannot stand within a text"
    if field and not table:
        return f"{name!r} is no record, and has no field {field!r}"
    if field and field != "key" and field not in tables[str(table)].fields:
        return f"{table} has no field {field!r}"
    return None


def _defect_of_names(step: Any, tables: Mapping[str, TableDefinition]) -> str | None:
    """What is wrong with the table and the fields that a step names."""
    if isinstance(step, RequireStep):
        return None
    if step.table not in tables:
        return f"there is no table {step.table!r}"
    fields = tables[step.table].fields
    named = step.where if isinstance(step, FindStep) else step.set if isinstance(step, UpdateStep) else {}
    named = step.record if isinstance(step, InsertStep) else named
    if unknown := sorted(named.keys() - fields.keys()):
        return f"{step.table} has no field {unknown[0]!r}"
    if isinstance(step, InsertStep) and (lacking := sorted(fields.keys() - named.keys())):
        return f"a record of {step.table} lacks {lacking[0]!r}"
    return None
