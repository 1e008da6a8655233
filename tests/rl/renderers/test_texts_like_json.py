"""Arguments that are texts and read as JSON, and such that are JSON: what a policy or a demonstration gives a tool is what it gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rl.call_arguments import as_object, value_of
from rl.renderers.base import Action, ActionTurn, Dialect, NotExpressible, Schema
from rl.renderers.chat import ChatDialect
from tests.rl.renderers.test_chat import calling
from tests.rl.renderers.test_examples import CHATS, DIALECTS, chat_of, dialect_of
from warehouse.records import ANSWER

TEXTS = (
    "1984", "-1", "0", "007", "1.0", "1e3", "1e999", "0x10", "1_000", "9" * 5_000, "true", "false", "null", "True", "None", "NaN",
    "Infinity", "-Infinity", '"quoted"', "'quoted'", '"', '\\"', "\\", "[]", "[1, 2]", "[" * 50, "{}", '{"a": 1}', "{'a': 1}",
    '{"query": "x"}', '{"query": 7, "count": 1}', '{"name": "search", "arguments": {"query": "x"}}', '{"a": 1}\n{"b": 2}',
    "[1, 2] [3]", "// {}", "",
)  # fmt: skip
NESTED = {"list": [1, "2", None], "more": {"a": ["{}"]}}


def tool(parameters: dict[str, Any], name: str = "search") -> Schema:
    return {"type": "function", "function": {"name": name, "description": "Works.", "parameters": parameters}}


ONE = tool({"type": "object", "properties": {"query": {"type": "string"}, "count": {"type": "integer"}}, "required": ["query"]})
TYPED = tool(
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"}, "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "word": {"enum": ["1", "true"]},
            "count": {"type": "integer"}, "ratio": {"type": "number"}, "sure": {"type": "boolean"}, "none": {"type": "null"},
            "list": {"type": "array"}, "more": {"type": "object"}, "any": {}, "either": {"type": ["string", "integer"]},
        },
        "required": ["text", "count"],
    }
)  # fmt: skip
VALUES: tuple[dict[str, Any], ...] = (
    {"text": "3", "count": 3, "ratio": 3, "sure": True, "none": None, **NESTED},
    {"text": "true", "count": -1, "ratio": 0.5, "sure": False, "maybe": "null and void", "word": "1"},
    {"text": "{}", "count": 0, "maybe": "7", "word": "true", "either": 7, "any": [1]},
    {"text": '["a"]', "count": 1, "maybe": None, "either": "seven", "any": "word"},
)


def written(dialect: Dialect, arguments: str, schema: Schema) -> tuple[int, ...] | None:
    """The ids of a call as a demonstration has it; None where the dialect says that it has no way to write it."""
    try:
        return dialect.action_ids(ActionTurn((Action("search", arguments),)), [schema])
    except NotExpressible:
        return None


def read(dialect: Dialect, ids: tuple[int, ...], schema: Schema) -> dict[str, Any]:
    """The arguments that the tool gets."""
    turn = dialect.parse(ids, [schema])
    assert isinstance(turn, ActionTurn), turn
    (call,) = turn.calls
    return as_object(call.arguments, schema["function"]["parameters"])


@pytest.mark.parametrize("name", DIALECTS)
def test_a_text_that_reads_as_json_comes_back_as_that_text(name: str) -> None:
    dialect = dialect_of(name)
    for text in TEXTS:
        ids = written(dialect, json.dumps({"query": text}), ONE)
        assert ids is not None and read(dialect, ids, ONE) == {"query": text}


@pytest.mark.parametrize("name", CHATS)
def test_what_the_template_writes_for_it_is_read_as_that_text(name: str) -> None:
    """Of a call that a policy made, by the model's template alone; other values keep their types."""
    dialect = chat_of(name)
    for text in TEXTS:
        assert read(dialect, calling(dialect, text), ONE) == {"query": text}
    for values in VALUES:
        ids = written(dialect, json.dumps(values), TYPED)
        assert ids is not None and read(dialect, ids, TYPED) == values


@pytest.mark.parametrize("name", DIALECTS)
def test_an_answer_that_reads_as_json_is_that_text_or_cannot_be_written(name: str) -> None:
    dialect = dialect_of(name)
    for text in filter(None, TEXTS):
        try:
            ids = dialect.action_ids(ActionTurn((Action(ANSWER, text),)), [ONE])
        except NotExpressible:
            is_call = text == '{"name": "search", "arguments": {"query": "x"}}'
            assert isinstance(dialect, ChatDialect) and (is_call or (dialect.layout.call_format == "bare_json" and text.startswith('{"')))
            continue
        assert dialect.parse(ids, [ONE]) == ActionTurn((Action(ANSWER, text),))


@pytest.mark.parametrize(
    ("text", "declared", "value"),
    [
        ("7", None, 7),
        ("7", {"$ref": "#/$defs/a"}, 7),
        ("7", {"type": ["string", "null"]}, "7"),
        ("null", {"type": ["string", "null"]}, None),
        ("7.0", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 7.0),
        ("7", {"anyOf": [{"type": "string"}, {"$ref": "a"}]}, 7),
        ("7", {"enum": ["7", "8"]}, "7"),
        ("true", {"type": "integer"}, True),
        ("True", {"type": "boolean"}, True),
        ("None", {"type": ["string", "null"]}, None),
    ],
)
def test_a_text_without_quotes_is_what_its_schema_takes(text: str, declared: dict[str, Any] | None, value: Any) -> None:
    found = value_of(text, declared)
    assert (found, type(found)) == (value, type(value))
