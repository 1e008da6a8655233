"""Calls that a reply writes as plain JSON, without its dialect's markers: where a call ends and an answer begins.

The rule is the same in every dialect and applies only if tools are on offer. After the reasoning, a reply is a call if it is

- call-shaped JSON objects, or lists of them, and nothing else: bare, in one fence, in backticks, or in tags such as `<tool_call>`;
- text followed by one fence at the end that holds only calls of tools on offer. Text after the JSON makes the reply an answer.

An object is call-shaped if it names a tool (`name`, `tool`, `tool_name`, `function`, `function_name`) and gives arguments (`arguments`,
`parameters`, `args`, `input`, `tool_input`) as an object or JSON text, with nothing else but `id`, `call_id` and `type`; or if it wraps
such an object under `function`, or a list of them under `tool_calls`, as OpenAI does. Arguments may be missing if the tool is on offer.

A call-shaped object that names an unknown tool, violates the tool's schema, or is broken JSON after the name of a tool on offer is a
malformed call: the policy sees why. Any other JSON, such as `{"title": "X", "year": 1999}`, is an answer. A tool named `answer` is always
on offer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rl.call_arguments import parameters_of, read_json, read_json_at
from rl.renderers.base import Action, ActionTurn, ParseError, Schema
from rl.tools.arguments import ArgumentsSchema
from rl.tools.tool import ToolError
from warehouse.errors import RequestError
from warehouse.records import ANSWER
from warehouse.replies import fences, split_reasoning

_NAMES = ("name", "tool", "tool_name", "function", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "tool_input")
_EXTRA = {"id", "call_id", "type"}
_BETWEEN = re.compile(r"(?:[\s,;]|</?(?:tool_calls?|tools|function_calls?|functioncall)>)*")
"""Allowed around the objects of several calls."""
_BEGUN = re.compile(rf'[\s\[{{]*"(?:{"|".join(_NAMES)})"\s*:\s*(?:\{{\s*"name"\s*:\s*)?"([^"\\]*)"\s*,\s*"(?:{"|".join(_ARGUMENTS)})"\s*:')
"""Beginning of a JSON call, with the tool's name."""
_LONGEST = 200
"""Characters of a reason shown to the policy."""


def read_json_calls(text: str, tools: Sequence[Schema], opened: bool = False) -> ActionTurn | ParseError | None:
    """Calls that a reply writes as plain JSON, or why they are malformed; None if it has no such call. Never raises.

    Args:
        opened: the prompt has already opened the reasoning.
    """
    if not tools:
        return None
    thought, rest = split_reasoning(text, opened)
    spoken, content = _content(rest)
    place = _BETWEEN.match(content).end()  # type: ignore[union-attr]  # it matches nothing, too
    if content[place : place + 1] not in ("{", "["):
        return None
    names = {tool["function"]["name"] for tool in tools} | {ANSWER}
    try:
        values = _values(content, place)
    except (ValueError, RecursionError) as error:
        begun = _BEGUN.match(content, place)
        return ParseError(f"a call that is not JSON ({error})"[:_LONGEST]) if begun and begun[1].strip() in names else None
    calls: list[Action] = []
    for value in values:
        call = _read(value, names, tools)
        if call is None or (spoken and (named := call_form(value)) is not None and named[0] not in names):
            return None
        if isinstance(call, ParseError):
            return call
        calls.append(call)
    return ActionTurn(tuple(calls), thought or spoken or None) if calls else None


def named_calls(text: str, opened: bool = False) -> list[str]:
    """Tool names in a reply of plain JSON calls, on offer or not; empty for any other reply."""
    _, content = _content(split_reasoning(text, opened)[1])
    try:
        forms = [call_form(value) for value in _values(content, 0)]
    except (ValueError, RecursionError):
        return []
    return [] if None in forms else [form[0] for form in forms if form is not None]


def call_form(value: Any) -> tuple[str, Any] | None:
    """Tool name and arguments (None if missing) of a call-shaped object; None for any other value."""
    if not isinstance(value, dict):
        return None
    keys = value.keys() - _EXTRA
    inner = value.get("function")
    if isinstance(inner, dict):
        return call_form(inner) if keys == {"function"} and not isinstance(inner.get("function"), dict) else None
    name, arguments = [key for key in _NAMES if key in keys], [key for key in _ARGUMENTS if key in keys]
    if len(name) != 1 or len(arguments) > 1 or len(keys) != len(name) + len(arguments):
        return None
    named = value[name[0]]
    if not isinstance(named, str) or not named.strip():
        return None
    return named.strip(), value[arguments[0]] if arguments else None


def as_action(name: str, arguments: Any) -> Action | ParseError:
    """The call with JSON arguments; an answer given as a call becomes its only argument, as text or JSON."""
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except (ValueError, RecursionError):
            return ParseError(f"the arguments of {name} are not JSON"[:_LONGEST])
    if not isinstance(arguments, dict):
        return ParseError(f"the arguments of {name} are not a JSON object"[:_LONGEST])
    said: Any = next(iter(arguments.values())) if name == ANSWER and len(arguments) == 1 else arguments
    try:
        text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        (name + text).encode()
    except (ValueError, RecursionError):
        return ParseError("a call holds what is no text")
    return Action(name, text)


def _content(text: str) -> tuple[str, str]:
    """Text before the JSON, and the text that should be JSON: inside the only fence at the end, or inside backticks."""
    found = fences(text)
    if len(found) == 1 and not text[found[0].end :].strip():
        return text[: found[0].start].strip(), found[0].body.strip()
    if text.startswith("`") and text.endswith("`"):
        return "", text.strip("`").strip().removeprefix("json").strip()
    return "", text


def _values(text: str, place: int) -> list[Any]:
    """The JSON values of a text; lists and OpenAI's `tool_calls` are flattened. Empty if other text follows. Raises ValueError or
    RecursionError.
    """
    values: list[Any] = []
    while place < len(text):
        if text[place] not in "{[":
            return []
        value, place = read_json_at(text, place)
        if isinstance(value, dict) and value.keys() == {"tool_calls"} and isinstance(value["tool_calls"], list):
            value = value["tool_calls"]
        values += value if isinstance(value, list) else [value]
        place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]
    return values


def _read(value: Any, names: set[str], tools: Sequence[Schema]) -> Action | ParseError | None:
    form = call_form(value)
    if form is None:
        return _flat(value, names, tools)
    name, arguments = form
    if name not in names:
        return ParseError(_unknown(name, names)) if _is_object(arguments) else None
    call = as_action(name, {} if arguments is None else arguments)
    if isinstance(call, ParseError) or name == ANSWER:
        return call
    return _objection(name, json.loads(call.arguments), tools) or call


def _flat(value: Any, names: set[str], tools: Sequence[Schema]) -> ParseError | None:
    """The objection to an object that names a tool on offer next to one of its arguments; None for any other."""
    if not isinstance(value, dict):
        return None
    for key in _NAMES:
        name = value.get(key)
        if isinstance(name, str) and name in names:
            declared = parameters_of(name, tools).get("properties") or {}
            if (declared.keys() - {key}) & value.keys():
                return ParseError(f'a call of {name} gives its arguments as an object under "arguments"'[:_LONGEST])
    return None


def _is_object(arguments: Any) -> bool:
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except (ValueError, RecursionError):
            return False
    return isinstance(arguments, dict)


def _unknown(name: str, names: set[str]) -> str:
    return f"there is no tool {name[:60]!r}, only {', '.join(sorted(names - {ANSWER}))}"[:_LONGEST]


def _objection(name: str, values: Mapping[str, Any], tools: Sequence[Schema]) -> ParseError | None:
    """Schema violation of the arguments; None also for a schema that cannot be checked."""
    schema = _schema(name, json.dumps(parameters_of(name, tools), sort_keys=True))
    try:
        if schema is not None:
            schema.check(values)
    except ToolError as error:
        return ParseError(str(error)[:_LONGEST])
    except (ValueError, TypeError, LookupError, RecursionError):  # a reference that leads nowhere, an invalid pattern
        return None
    return None


@lru_cache(maxsize=256)
def _schema(name: str, parameters: str) -> ArgumentsSchema | None:
    try:
        return ArgumentsSchema(json.loads(parameters), name)
    except RequestError:
        return None
