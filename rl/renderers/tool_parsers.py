"""Parse tool calls in a policy's messages: one parser per call format, and calls as plain JSON in any format.

A policy's format is the one whose parser returns a call rendered with its chat template. A message without a call is an answer. Parsers
take linear time and never raise.

A closing marker counts only if the format continues properly after it; otherwise it is text, such as `</tool_call>` in a call's JSON,
`</parameter>` before other text, or a marker in quotes or in a closed fence.

Plain JSON (`read_json_calls`) counts only if tools are offered. After the reasoning, a reply is a call if it is

- only call-shaped JSON objects, or lists of them: bare, in one fence, in backticks, or in tags such as `<tool_call>`;
- text followed by one fence at the end that contains only calls of offered tools. Text after the JSON makes the reply an answer.

The outer braces of an object may be doubled; Qwen2.5-Coder writes them so because its chat template does.

An object is call-shaped if it names a tool (`name`, `tool`, `tool_name`, `function`, `function_name`) and gives arguments (`arguments`,
`parameters`, `args`, `input`, `tool_input`) as an object or JSON text, with nothing else but `id`, `call_id` and `type`; or if it wraps
such an object under `function`, or a list of them under `tool_calls`, as OpenAI does. Arguments may be missing if the tool is offered.

A call-shaped object that names an unknown tool, violates the tool's schema, or is broken JSON after the name of an offered tool is a
malformed call, and the policy sees why. Any other JSON, such as `{"title": "X", "year": 1999}`, is an answer. A tool named `answer` is
always offered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from rl.call_arguments import parameters_of, read_json, read_json_at, value_of
from rl.renderers.base import Action, ActionTurn, ParseError, Schema
from rl.tools.arguments import ArgumentsSchema
from rl.tools.tool import ToolError
from warehouse.errors import RequestError
from warehouse.records import ANSWER
from warehouse.replies import fences, split_reasoning

_NAMES = ("name", "tool", "tool_name", "function", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "tool_input")
_EXTRA_KEYS = {"id", "call_id", "type"}
_BETWEEN = re.compile(r"(?:[\s,;]|</?(?:tool_calls?|tools|function_calls?|functioncall)>)*")
"""Separators and tags allowed around the objects of several calls."""
_CLOSING = re.compile(r"\}{0,2}")
_BEGUN = re.compile(rf'[\s\[{{]*"(?:{"|".join(_NAMES)})"\s*:\s*(?:\{{\s*"name"\s*:\s*)?"([^"\\]*)"\s*,\s*"(?:{"|".join(_ARGUMENTS)})"\s*:')
"""Start of a JSON call, with the tool's name as group 1."""
_LONGEST = 200
"""Maximum characters of a reason shown to the policy."""


def read_json_calls(text: str, tools: Sequence[Schema], opened: bool = False) -> ActionTurn | ParseError | None:
    """Parse calls that a reply writes as plain JSON, or say why they are malformed; None if it has no such call. Never raises.

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
        values = _values_from(content, place)
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
    """Tool names in a reply of plain JSON calls, offered or not; empty for any other reply."""
    _, content = _content(split_reasoning(text, opened)[1])
    try:
        forms = [call_form(value) for value in _values_from(content, 0)]
    except (ValueError, RecursionError):
        return []
    return [] if None in forms else [form[0] for form in forms if form is not None]


def call_form(value: Any) -> tuple[str, Any] | None:
    """Tool name and arguments (None if missing) of a call-shaped object; None for any other value."""
    if not isinstance(value, dict):
        return None
    keys = value.keys() - _EXTRA_KEYS
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
    """Build the call with JSON arguments; an answer given as a call becomes its only argument, as text or JSON."""
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


def _values_from(text: str, place: int) -> list[Any]:
    """JSON values of a text, with lists and OpenAI's `tool_calls` flattened; empty if other text follows.

    Raises:
        ValueError, RecursionError: invalid JSON.
    """
    values: list[Any] = []
    while place < len(text):
        if text[place] not in "{[":
            return []
        doubled = text.startswith("{{", place)
        value, place = read_json_at(text, place + doubled)
        if doubled:
            place = _CLOSING.match(text, place).end()  # type: ignore[union-attr]
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
    """Error for an object that names an offered tool next to one of its arguments; None for any other."""
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
    except (ValueError, TypeError, LookupError, RecursionError):  # an unresolvable reference, an invalid pattern
        return None
    return None


@lru_cache(maxsize=256)
def _schema(name: str, parameters: str) -> ArgumentsSchema | None:
    try:
        return ArgumentsSchema(json.loads(parameters), name)
    except RequestError:
        return None


class ToolParser(Protocol):
    """Parser of messages in one format; `opened` means that the prompt has opened the reasoning."""

    def __call__(self, text: str, tools: Sequence[Schema] = (), opened: bool = False) -> ActionTurn | ParseError: ...


_Body = Callable[[str, int], tuple[Action, int] | ParseError]
"""Parses one call after its opening tag; returns it with the position after its closing tag."""
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_MARK = re.compile(r"""(?<![`"'])</?tool_call>|</?tool_call>(?![`"'])""")
"""An opening or closing tag that is not quoted."""
_SPAN = re.compile(r"`[^`\n]+`")
_END = "\0"
"""Appended to detect whether reasoning has ended; no text ends with it."""
_EXTRA = {"name", "id", "type"}
"""Keys that a JSON call without arguments may have."""
_BLANK = re.compile(r"\s*")
_CLOSED = re.compile(r"\s*</tool_call>")
_AFTER_CALL = r"\s*</tool_call>\s*(?:<tool_call>|\Z)"
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\s*")
_FUNCTION_END = re.compile(r"\s*</function>\s*</tool_call>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
_PARAMETER_END = re.compile(rf"</parameter>(?=\s*<parameter=[^>\n]+>|\s*</function>{_AFTER_CALL})")
_NEXT_FUNCTION = re.compile(r"</tool_call>\s*<tool_call>\s*<function=")
_PAIR_NAME = re.compile(r"[^<]*")
_KEY = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>", re.DOTALL)
_VALUE_END = re.compile(rf"</arg_value>(?=\s*<arg_key>|{_AFTER_CALL})")
_NEXT_PAIRS = re.compile(r"</tool_call>\s*<tool_call>[^<]*<arg_key>")
_OBJECT = re.compile(r'\s*\{\s*(?:"|\})')


def parse_json_in_tags(text: str, tools: Sequence[Schema] = (), opened: bool = False) -> ActionTurn | ParseError:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one or several: Hermes, Qwen2.5, Qwen3."""
    return _parse_in_tags(text, _json_body, opened)


def parse_functions_in_tags(text: str, tools: Sequence[Schema] = (), opened: bool = False) -> ActionTurn | ParseError:
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3.5, Nemotron 3."""
    return _parse_in_tags(text, lambda inside, place: _function_body(inside, place, tools), opened)


def parse_pairs_in_tags(text: str, tools: Sequence[Schema] = (), opened: bool = False) -> ActionTurn | ParseError:
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`: GLM-4.5."""
    return _parse_in_tags(text, lambda inside, place: _pairs_body(inside, place, tools), opened)


def parse_bare_json(text: str, tools: Sequence[Schema] = (), opened: bool = False) -> ActionTurn | ParseError:
    """A message that is only `{"name": ..., "parameters": {...}}`: Llama 3.1 and 3.2.

    If tools are offered, an object that is not call-shaped is an answer.
    """
    think, rest = split_reasoning(text, opened)
    if think or not _OBJECT.match(rest):  # these templates show no thought before a call; such calls are left to `read_json_calls`
        return _answer(rest, think)
    try:
        value = read_json(rest)
    except (ValueError, RecursionError) as error:
        return ParseError(f"a call that is not JSON ({error})"[:200])
    call = _from_json(value, "parameters")
    if tools and read_json_calls(rest, tools) is None:
        return _answer(rest, think)
    return call if isinstance(call, ParseError) else ActionTurn((call,))


TOOL_PARSERS: dict[str, ToolParser] = {
    "json_in_tags": parse_json_in_tags,
    "functions_in_tags": parse_functions_in_tags,
    "pairs_in_tags": parse_pairs_in_tags,
    "bare_json": parse_bare_json,
}
"""Parsers by format name."""


def _parse_in_tags(text: str, body: _Body, opened: bool) -> ActionTurn | ParseError:
    """Parse an optional thought, optional text, then calls in tags with nothing after them."""
    found = _mark(text)
    whole: ActionTurn | ParseError | None = None
    if found is not None and found[0] == _CALL:  # reasoning tags inside a call are text, so parse the part before the call alone
        think, spoken = _before(text[: found.start()], opened)
        whole = None if spoken is None else _calls(text, found.start(), body, think or spoken)
        if isinstance(whole, ActionTurn):
            return whole
    think, rest = split_reasoning(text, opened)
    if not rest:
        return whole or ParseError("the thought was not closed" if think else "expected a call or an answer")
    found = _mark(rest)
    if found is not None and found[0] == _CALL:
        return _calls(rest, found.start(), body, think or rest[: found.start()].strip())
    return ParseError(f"{_CALL_END} without {_CALL}") if found is not None else _answer(rest, think)


def _before(text: str, opened: bool) -> tuple[str, str | None]:
    """Reasoning and text before a call; text is None if reasoning is still open there."""
    think, spoken = split_reasoning(text + _END, opened)
    if spoken.endswith(_END):
        return think, spoken.removesuffix(_END).strip()
    return ("", text.strip()) if split_reasoning(text) == ("", text.strip()) else ("", None)


def _mark(text: str) -> re.Match[str] | None:
    """First call tag outside code; a closing tag counts only at the end, otherwise it is text about tags."""
    guards = [(fence.start, fence.end) for fence in fences(text) if fence.closed]
    guards = sorted([*guards, *(span.span() for span in _SPAN.finditer(text))])
    number = 0
    for found in _MARK.finditer(text):
        while number < len(guards) and guards[number][1] <= found.start():
            number += 1
        guarded = number < len(guards) and guards[number][0] <= found.start()
        if not guarded and (found[0] == _CALL or _BLANK.fullmatch(text, found.end())):
            return found
    return None


def _calls(text: str, start: int, body: _Body, think: str) -> ActionTurn | ParseError:
    """Parse calls from the tag at `start` to the end."""
    calls: list[Action] = []
    place = start
    while place < len(text):
        if not text.startswith(_CALL, place):
            return ParseError("there is text behind a call")
        read = body(text, place + len(_CALL))
        if isinstance(read, ParseError):
            return read
        calls.append(read[0])
        place = _BLANK.match(text, read[1]).end()  # type: ignore[union-attr]  # it matches nothing, too
    return ActionTurn(tuple(calls), think or None)


def _answer(text: str, think: str) -> ActionTurn | ParseError:
    if not text.strip():
        return ParseError("the thought was not closed" if think else "expected a call or an answer")
    return ActionTurn((Action(ANSWER, text.strip()),), think or None)


def _json_body(text: str, place: int) -> tuple[Action, int] | ParseError:
    try:
        value, end = read_json_at(text, _BLANK.match(text, place).end())  # type: ignore[union-attr]
    except (ValueError, RecursionError) as error:
        closed = text.find(_CALL_END, place) >= 0
        return ParseError(f"a call that is not JSON ({error})"[:200] if closed else f"{_CALL} was not closed")
    closing = _CLOSED.match(text, end)
    if closing is None:
        closed = text.find(_CALL_END, end) >= 0
        return ParseError("a call that is not JSON (text behind the object)" if closed else f"{_CALL} was not closed")
    call = _from_json(value, "arguments")
    return call if isinstance(call, ParseError) else (call, closing.end())


def _from_json(value: Any, key: str) -> Action | ParseError:
    """Parse the call `{"name": ..., key: {...}}`."""
    named = isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"].strip()
    if not named or (key not in value and value.keys() - _EXTRA):  # arguments under another key would be lost
        return ParseError(f'a call is a JSON object with "name" and "{key}"')
    return as_action(value["name"].strip(), value.get(key, {}))


def _function_body(text: str, place: int, tools: Sequence[Schema]) -> tuple[Action, int] | ParseError:
    function = _FUNCTION.match(text, place)
    if function is None:
        return ParseError("a call is <function=name> ... </function>")
    name, arguments, place = function[1].strip(), dict[str, str](), function.end()
    while (end := _FUNCTION_END.match(text, place)) is None:
        parameter = _PARAMETER.match(text, place)
        if parameter is None:
            closed = text.find(_CALL_END, place) >= 0
            return ParseError("an argument is <parameter=key> ... </parameter>" if closed else f"{_CALL} was not closed")
        closing = _PARAMETER_END.search(text, parameter.end())
        if closing is None or _NEXT_FUNCTION.search(text, parameter.end(), closing.start()):
            return ParseError("<parameter> was not closed")
        arguments[parameter[1].strip()] = text[parameter.end() : closing.start()].removesuffix("\n")
        place = closing.end()
    call = as_action(name, _typed(name, arguments, tools))
    return call if isinstance(call, ParseError) else (call, end.end())


def _pairs_body(text: str, place: int, tools: Sequence[Schema]) -> tuple[Action, int] | ParseError:
    named = _PAIR_NAME.match(text, place)
    name = named[0].strip() if named else ""
    if named is None or not name:
        return ParseError("a call begins with the tool's name")
    arguments, place = dict[str, str](), named.end()
    while (end := _CLOSED.match(text, place)) is None:
        key = _KEY.match(text, place)
        closing = None if key is None else _VALUE_END.search(text, key.end())
        if key is None or closing is None or _NEXT_PAIRS.search(text, key.end(), closing.start()):
            closed = text.find(_CALL_END, place) >= 0
            return ParseError("an argument is <arg_key>key</arg_key><arg_value>value</arg_value>" if closed else f"{_CALL} was not closed")
        arguments[key[1].strip()] = text[key.end() : closing.start()]
        place = closing.end()
    call = as_action(name, _typed(name, arguments, tools))
    return call if isinstance(call, ParseError) else (call, end.end())


def _typed(name: str, arguments: Mapping[str, str], tools: Sequence[Schema]) -> dict[str, Any]:
    """Unquoted values converted by the tool's schema; values of an answer stay text."""
    if name == ANSWER:
        return dict(arguments)
    declared = parameters_of(name, tools).get("properties", {})
    return {key: value_of(text, declared.get(key)) for key, text in arguments.items()}
