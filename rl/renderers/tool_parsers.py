"""How families of models write calls: a parser for each format, which returns an action or the reason why there is none.

Which format a policy has is found by rendering a call with its own chat template and trying which parser gives it back. A message without
a call is the answer. Parsers take time linear in the text and raise nothing, whatever it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rl.renderers.arguments import parameters_of, read_json, value_of
from rl.renderers.base import Action, ActionTurn, ParseError, Schema
from warehouse.records import ANSWER

ToolParser = Callable[[str, Sequence[Schema]], ActionTurn | ParseError]

_THOUGHT_END = "</think>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_BESIDE = {"name", "id", "type"}
"""What a call in JSON may hold without arguments."""
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\s*")


def parse_json_in_tags(text: str, tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one or several: Hermes, Qwen2.5, Qwen3."""
    return _parse_in_tags(text, lambda inside: _from_json(inside, "arguments"))


def parse_functions_in_tags(text: str, tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3.5, Nemotron 3."""
    return _parse_in_tags(text, partial(_from_function, tools=tools))


def parse_pairs_in_tags(text: str, tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`: GLM-4.5."""
    return _parse_in_tags(text, partial(_from_pairs, tools=tools))


def parse_bare_json(text: str, tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
    """A message that is `{"name": ..., "parameters": {...}}` and nothing else: Llama 3.1 and 3.2."""
    if not text.lstrip().startswith("{"):
        return _answer(text, None)
    call = _from_json(text, "parameters")
    return call if isinstance(call, ParseError) else ActionTurn((call,))


TOOL_PARSERS: dict[str, ToolParser] = {
    "json_in_tags": parse_json_in_tags,
    "functions_in_tags": parse_functions_in_tags,
    "pairs_in_tags": parse_pairs_in_tags,
    "bare_json": parse_bare_json,
}
"""Every format, by its name."""


def _parse_in_tags(text: str, parse: Callable[[str], Action | ParseError]) -> ActionTurn | ParseError:
    """An optional thought, an optional text, then calls in tags and nothing behind them."""
    think, rest = _split_thought(text)
    spoken, opened, inside = rest.partition(_CALL)
    if not opened:
        return ParseError(f"{_CALL_END} without {_CALL}") if _CALL_END in rest else _answer(rest, think)
    calls: list[Action] = []
    for piece in inside.split(_CALL):
        body, closed, after = piece.partition(_CALL_END)
        if not closed:
            return ParseError(f"{_CALL} was not closed")
        if after.strip():
            return ParseError("there is text behind a call")
        call = parse(body)
        if isinstance(call, ParseError):
            return call
        calls.append(call)
    return ActionTurn(tuple(calls), think if think is not None else spoken.strip() or None)


def _split_thought(text: str) -> tuple[str | None, str]:
    """The thought and what follows; a template may have opened the thought already, so its opening tag may be missing."""
    before, ended, after = text.partition(_THOUGHT_END)
    if not ended:
        return None, text
    return before.strip().removeprefix("<think>").strip() or None, after


def _answer(text: str, think: str | None) -> ActionTurn | ParseError:
    answer = text.strip()
    if not answer or answer.startswith("<think>"):
        return ParseError("expected a call or an answer")
    return ActionTurn((Action(ANSWER, answer),), think)


def _from_json(text: str, key: str) -> Action | ParseError:
    """The call in `{"name": ..., key: {...}}`."""
    try:
        value = read_json(text)
    except (ValueError, RecursionError) as error:
        return ParseError(f"a call that is not JSON ({error})"[:200])
    named = isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"].strip()
    if not named or (key not in value and value.keys() - _BESIDE):  # arguments under another name would be lost
        return ParseError(f'a call is a JSON object with "name" and "{key}"')
    return _call(value["name"].strip(), value.get(key, {}))


def _from_function(text: str, tools: Sequence[Schema]) -> Action | ParseError:
    function = _FUNCTION.match(text)
    body, closed, after = text[function.end() :].rpartition("</function>") if function else ("", "", "")
    if function is None or not closed or after.strip():
        return ParseError("a call is <function=name> ... </function>")
    name, arguments = function[1].strip(), dict[str, str]()
    *pieces, rest = body.split("</parameter>")
    for piece in pieces:
        parameter = _PARAMETER.match(piece)
        if parameter is None:
            return ParseError("an argument is <parameter=key> ... </parameter>")
        arguments[parameter[1].strip()] = piece[parameter.end() :].removesuffix("\n")
    return ParseError("<parameter> was not closed") if rest.strip() else _call(name, _values(name, arguments, tools))


def _from_pairs(text: str, tools: Sequence[Schema]) -> Action | ParseError:
    name, *pairs = text.split("<arg_key>")
    arguments: dict[str, str] = {}
    for pair in pairs:
        key, key_closed, rest = pair.partition("</arg_key>")
        value, closed, after = rest.strip().removeprefix("<arg_value>").partition("</arg_value>")
        if not key_closed or not closed or after.strip():
            return ParseError("an argument is <arg_key>key</arg_key><arg_value>value</arg_value>")
        arguments[key.strip()] = value
    name = name.strip()
    return _call(name, _values(name, arguments, tools)) if name and "<" not in name else ParseError("a call begins with the tool's name")


def _values(name: str, arguments: Mapping[str, str], tools: Sequence[Schema]) -> dict[str, Any]:
    """Values that stand without quotes, as the tool takes them; an answer is text."""
    if name == ANSWER:
        return dict(arguments)
    declared = parameters_of(name, tools).get("properties", {})
    return {key: value_of(text, declared.get(key)) for key, text in arguments.items()}


def _call(name: str, arguments: Any) -> Action | ParseError:
    """The call, its arguments as JSON; an answer that is given as a call becomes its only argument: its text, else its JSON."""
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except (ValueError, RecursionError):
            return ParseError(f"the arguments of {name} are not JSON")
    if not isinstance(arguments, dict):
        return ParseError(f"the arguments of {name} are not a JSON object")
    said: Any = next(iter(arguments.values())) if name == ANSWER and len(arguments) == 1 else arguments
    try:
        text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        (name + text).encode()
    except (ValueError, RecursionError):
        return ParseError("a call holds what is no text")
    return Action(name, text)
