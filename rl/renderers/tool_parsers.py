"""Call formats of model families: one parser per format, which returns an action or the reason why there is none.

A policy's format is the one whose parser returns a call rendered with its chat template. A message without a call is an answer. Parsers
take linear time and never raise.

A closing marker ends something only if the format continues properly after it: `</tool_call>` in a call's JSON, `</parameter>` before other
text, or a marker in quotes or in a closed fence are text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rl.call_arguments import parameters_of, read_json, read_json_at, value_of
from rl.renderers.base import Action, ActionTurn, ParseError, Schema
from rl.renderers.json_calls import as_action, read_json_calls
from warehouse.records import ANSWER
from warehouse.replies import fences, split_reasoning


class ToolParser(Protocol):
    """A parser of messages in one format; `opened` means that the prompt opened the reasoning."""

    def __call__(self, text: str, tools: Sequence[Schema] = (), opened: bool = False) -> ActionTurn | ParseError: ...


_Body = Callable[[str, int], tuple[Action, int] | ParseError]
"""Parses one call after its opening tag; returns it with the position after its closing tag."""
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_MARK = re.compile(r"""(?<![`"'])</?tool_call>|</?tool_call>(?![`"'])""")
"""An opening or closing tag that is not quoted."""
_SPAN = re.compile(r"`[^`\n]+`")
_END = "\0"
"""Appended to detect whether reasoning is over; no text ends with it."""
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
    """A message that is `{"name": ..., "parameters": {...}}` and nothing else: Llama 3.1 and 3.2.

    If tools are on offer, an object that is not call-shaped (`rl.renderers.json_calls`) is an answer.
    """
    think, rest = split_reasoning(text, opened)
    if think or not _OBJECT.match(rest):  # these templates show no thought before a call: such a call is one of `read_json_calls`
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
"""All formats by name."""


def _parse_in_tags(text: str, body: _Body, opened: bool) -> ActionTurn | ParseError:
    """An optional thought, optional text, then calls in tags and nothing after them."""
    found = _mark(text)
    whole: ActionTurn | ParseError | None = None
    if found is not None and found[0] == _CALL:  # a mark of reasoning inside a call is text, so what stands before is read alone
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
    """Reasoning and text before a call; None if reasoning is still open there."""
    think, spoken = split_reasoning(text + _END, opened)
    if spoken.endswith(_END):
        return think, spoken.removesuffix(_END).strip()
    return ("", text.strip()) if split_reasoning(text) == ("", text.strip()) else ("", None)


def _mark(text: str) -> re.Match[str] | None:
    """The first call tag outside code; a closing tag counts only at the end, otherwise it is text about tags."""
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
    """Calls from the tag at `start` to the end."""
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
    """The call in `{"name": ..., key: {...}}`."""
    named = isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"].strip()
    if not named or (key not in value and value.keys() - _EXTRA):  # arguments under another name would be lost
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
    """Unquoted values typed by the tool's schema; an answer is text."""
    if name == ANSWER:
        return dict(arguments)
    declared = parameters_of(name, tools).get("properties", {})
    return {key: value_of(text, declared.get(key)) for key, text in arguments.items()}
