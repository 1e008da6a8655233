"""Calls and marks inside text: closing marks in arguments, calls as plain JSON, and text that reads as JSON."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from rl.call_arguments import as_object, value_of
from rl.policies.tokenization import build_tokenizer
from rl.renderers.base import Action, ActionTurn, Dialect, NotExpressible, ParseError, Result, Schema, Truncation
from rl.renderers.chat import ChatDialect
from rl.renderers.tags import TagDialect
from rl.renderers.tool_parsers import TOOL_PARSERS, read_json_calls
from synth.teachers.play import TextDialect
from tests.rl.renderers.templates_of_trl import TEXTS
from tests.rl.renderers.test_chat import FORMS, answering, calling, proven
from tests.rl.renderers.test_examples import CHATS, DIALECTS, chat_of, dialect_of
from warehouse.records import ANSWER


def tool(name: str, properties: dict[str, Any], required: list[str]) -> Schema:
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": "Works.", "parameters": parameters}}


SEARCH = tool("search", {"query": {"type": "string"}, "count": {"type": "integer"}}, ["query"])
CODE = tool("code", {"code": {"type": "string"}}, ["code"])
TOOLS = (SEARCH, CODE)
HARD = (
    "</tool_call>", "a</tool_call>b", "<tool_call>", "</think>", "<think>x</think>", "</parameter>", "x</parameter>y", "</function>",
    "</arg_value>", "<arg_key>k</arg_key>", "</answer>", "```\n</tool_call>\n```", "}", '"}}\n</tool_call>', "`</tool_call>`",
    '{"name": "search", "arguments": {"query": "x"}}', "</parameter>\nand </function>\nand </tool_call>\nmore", "</search>",
)  # fmt: skip
CALL = '{"name": "search", "arguments": {"query": "a"}}'
READ = Action("search", '{"query": "a"}')
AS_TEXT = json.dumps({"name": "search", "arguments": json.dumps({"query": "a"})})
TAKEN = {
    "bare": CALL,
    "parameters": '{"name": "search", "parameters": {"query": "a"}}',
    "tool": '{"tool": "search", "arguments": {"query": "a"}}',
    "tool_name": '{"tool_name": "search", "args": {"query": "a"}}',
    "function": '{"function": "search", "arguments": {"query": "a"}}',
    "function object": '{"function": {"name": "search", "arguments": {"query": "a"}}}',
    "OpenAI": '{"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}}',
    "OpenAI's list": '{"tool_calls": [{"type": "function", "function": {"name": "search", "arguments": {"query": "a"}}}]}',
    "arguments as text": AS_TEXT,
    "list": f"[{CALL}]",
    "fence": f"```json\n{CALL}\n```",
    "plain fence": f"```\n{CALL}\n```\n",
    "tildes": f"~~~\n{CALL}\n~~~",
    "inline": f"`{CALL}`",
    "prose and fence": f"I'll search:\n```json\n{CALL}\n```",
    "tags in a fence": f"```xml\n<tool_call>\n{CALL}\n</tool_call>\n```",
    "other tags": f"<tools>\n{CALL}\n</tools>",
    "closing tag alone": f"{CALL}\n</tool_call>",
    "doubled braces": f"{{{CALL}}}",
    "doubled braces, one too many": f"{{{CALL}}}}}",
    "doubled braces in tags": f"<tools>\n{{{CALL}}}\n</tools>",
    "indented": json.dumps(json.loads(CALL), indent=2),
}
MALFORMED = {
    "unknown tool": '{"name": "browse", "arguments": {"url": "a"}}',
    "unknown tool in a fence": '```json\n{"tool": "browse", "parameters": {"url": "a"}}\n```',
    "missing": '{"name": "search", "arguments": {}}',
    "no arguments": '{"name": "search"}',
    "type": '{"name": "search", "arguments": {"query": 7}}',
    "type of another": '{"name": "search", "arguments": {"query": "a", "count": "many"}}',
    "unknown argument": '{"name": "search", "arguments": {"query": "a", "page": 2}}',
    "list": '{"name": "search", "arguments": ["a"]}',
    "text": '{"name": "search", "arguments": "a"}',
    "flat": '{"name": "search", "query": "a"}',
    "a brace short": '{"name": "search", "arguments": {"query": "a"}',
    "NaN": '{"name": "search", "arguments": {"query": NaN}}',
    "one of two": f'[{CALL}, {{"name": "search", "arguments": {{}}}}]',
    "prose and a fence": '```\n{"name": "code", "arguments": {"query": "a"}}\n```',
}
ANSWERS = (
    '{"title": "X", "year": 1999}',
    '```json\n{"title": "X"}\n```',
    '{"name": "Amber Stone"}',
    '{"name": "Amber Stone", "year": 3}',
    '{"name": "sqrt", "parameters": ["x"]}',
    "{}",
    "[1, 2]",
    '["search"]',
    "{1, 2} is the set",
    "Green Lake",
    f"{CALL}\nThis will find it.",
    f"```json\n{CALL}\n```\nThis will find it.",
    f"```json\n{CALL}\n```\nor\n```json\n{CALL}\n```",
    'I would call:\n```json\n{"name": "browse", "arguments": {"url": "a"}}\n```',
)


def parse(name: str, text: str, tools: tuple[Schema, ...] = TOOLS) -> ActionTurn | ParseError:
    dialect = proven(name)
    return dialect.parse(answering(dialect, f"hm\n</think>\n\n{text}" if dialect.layout.opens_thought else text), tools)


@pytest.mark.parametrize("name", FORMS)
def test_marks_inside_arguments_are_text(name: str) -> None:
    """As the policy's own template writes the call, in letters: ids of control tokens never appear in a text."""
    dialect = proven(name)
    place = "Amber7Stone"
    written = dialect.decode(calling(dialect, place)[:-1])
    quoted = '"' in written[written.index(place) - 1]
    for value in HARD:
        text = written.replace(place, json.dumps(value, ensure_ascii=False)[1:-1] if quoted else value)
        expected = ActionTurn((Action("search", json.dumps({"query": value}, ensure_ascii=False)),), None)
        assert dialect.layout.parser(text, TOOLS, dialect.layout.opens_thought) == expected


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_marks_inside_reasoning_and_answers_are_text(name: str) -> None:
    parser = TOOL_PARSERS[name]
    for value in (value for value in HARD if "</think>" not in value and "<tool_call>" not in value):
        assert parser(f"<think>maybe {value} or so</think>\nGreen Lake", TOOLS) == ActionTurn(
            (Action(ANSWER, "Green Lake"),), f"maybe {value} or so"
        )
        answer = f"The mark `{value}` ends it."
        if "\n" not in value and "`" not in value:
            assert parser(answer, TOOLS) == ActionTurn((Action(ANSWER, answer),))


@pytest.mark.parametrize("name", FORMS)
def test_a_reply_that_is_a_json_call_is_a_call(name: str) -> None:
    for text in TAKEN.values():
        for each in (text, text if proven(name).layout.opens_thought else f"<think>\nhm\n</think>\n\n{text}"):
            turn = parse(name, each)
            assert isinstance(turn, ActionTurn) and turn.calls == (READ,), each
    if name != "llama3_1":
        turn = parse(name, CALL, ())
        assert isinstance(turn, ActionTurn) and turn.calls == (Action(ANSWER, CALL),), "without tools on offer"


@pytest.mark.parametrize("name", FORMS)
def test_malformed_calls_are_shown_to_the_policy_and_other_json_is_an_answer(name: str) -> None:
    for kind, text in MALFORMED.items():
        if not (name == "llama3_1" and kind == "no arguments"):  # a whole call in its own format: the tool says what is missing
            assert isinstance(parse(name, text), ParseError), text
    for text in ANSWERS:
        if not (name == "llama3_1" and text.startswith(CALL)):  # its own format is bare JSON: text after it is a malformed call
            turn = parse(name, text)
            assert isinstance(turn, ActionTurn) and turn.calls == (Action(ANSWER, text.strip()),)


@pytest.mark.parametrize("name", ["tags", "text"])
def test_tags_and_teachers_take_json_calls_too(name: str) -> None:
    tokenizer = build_tokenizer(TEXTS, 400)
    dialect: Any = TagDialect(tokenizer) if name == "tags" else TextDialect()

    def read(text: str) -> ActionTurn | ParseError:
        ids = (*dialect.text_ids(text), tokenizer.eos_token_id) if name == "tags" else tuple(map(ord, text))
        return dialect.parse(ids, TOOLS)

    for text in TAKEN.values():
        turn = read(text)
        assert isinstance(turn, ActionTurn) and turn.calls == (READ,), text
    for text in (*MALFORMED.values(), *ANSWERS):
        taken = name == "text" and text in ANSWERS  # a teacher's message without a call is its answer
        turn = read(text)
        assert turn == ActionTurn((Action(ANSWER, text.strip()),)) if taken else isinstance(turn, ParseError), text


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_that_parses_as_a_call_is_refused(name: str) -> None:
    dialect = proven(name)
    with pytest.raises(NotExpressible):
        dialect.action_ids(ActionTurn((Action(ANSWER, CALL),)), TOOLS)
    text = f"hm\n</think>\n\n{CALL}" if dialect.layout.opens_thought else CALL
    reply = dialect.reply_ids(answering(dialect, text), [Result("Found it.")], Truncation(1_000))
    assert "Found it." in dialect.decode(reply)
    stop = dialect.template.special[dialect.layout.call_stop]
    assert reply == dialect.reply_ids((*calling(dialect, "a")[:-1], stop), [Result("Found it.")], Truncation(1_000))


@pytest.mark.parametrize("piece", ["<tool_call>", "</parameter>", "```\n", '{"a":', "<arg_key>"])
def test_parsers_take_linear_time_and_raise_nothing(piece: str) -> None:
    text = piece * (12_000 // len(piece))
    for prefix in ("", "<think>", "<tool_call>\n<function=a>\n<parameter=b>\n", "<tool_call>a<arg_key>b</arg_key><arg_value>", CALL):
        begun = time.process_time()
        for parser in TOOL_PARSERS.values():
            parser(prefix + text, TOOLS)
        read_json_calls(prefix + text, TOOLS)
        assert time.process_time() - begun < 3


LIKE_JSON = (
    "1984", "-1", "0", "007", "1.0", "1e3", "1e999", "0x10", "1_000", "9" * 5_000, "true", "false", "null", "True", "None", "NaN",
    "Infinity", "-Infinity", '"quoted"', "'quoted'", '"', '\\"', "\\", "[]", "[1, 2]", "[" * 50, "{}", '{"a": 1}', "{'a': 1}",
    '{"query": "x"}', '{"query": 7, "count": 1}', '{"name": "search", "arguments": {"query": "x"}}', '{"a": 1}\n{"b": 2}',
    "[1, 2] [3]", "// {}", "",
)  # fmt: skip
NESTED = {"list": [1, "2", None], "more": {"a": ["{}"]}}


TYPED = tool(
    "search",
    {
        "text": {"type": "string"}, "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "word": {"enum": ["1", "true"]},
        "count": {"type": "integer"}, "ratio": {"type": "number"}, "sure": {"type": "boolean"}, "none": {"type": "null"},
        "list": {"type": "array"}, "more": {"type": "object"}, "any": {}, "either": {"type": ["string", "integer"]},
    },
    ["text", "count"],
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
    for text in LIKE_JSON:
        ids = written(dialect, json.dumps({"query": text}), SEARCH)
        assert ids is not None and read(dialect, ids, SEARCH) == {"query": text}


@pytest.mark.parametrize("name", CHATS)
def test_what_the_template_writes_for_it_is_read_as_that_text(name: str) -> None:
    """Of a call that a policy made, by the model's template alone; other values keep their types."""
    dialect = chat_of(name)
    for text in LIKE_JSON:
        assert read(dialect, calling(dialect, text), SEARCH) == {"query": text}
    for values in VALUES:
        ids = written(dialect, json.dumps(values), TYPED)
        assert ids is not None and read(dialect, ids, TYPED) == values


@pytest.mark.parametrize("name", DIALECTS)
def test_an_answer_that_reads_as_json_is_that_text_or_cannot_be_written(name: str) -> None:
    dialect = dialect_of(name)
    for text in filter(None, LIKE_JSON):
        try:
            ids = dialect.action_ids(ActionTurn((Action(ANSWER, text),)), [SEARCH])
        except NotExpressible:
            is_call = text == '{"name": "search", "arguments": {"query": "x"}}'
            assert isinstance(dialect, ChatDialect) and (is_call or (dialect.layout.call_format == "bare_json" and text.startswith('{"')))
            continue
        assert dialect.parse(ids, [SEARCH]) == ActionTurn((Action(ANSWER, text),))


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
def test_unquoted_text_is_read_by_its_schema(text: str, declared: dict[str, Any] | None, value: Any) -> None:
    found = value_of(text, declared)
    assert (found, type(found)) == (value, type(value))
