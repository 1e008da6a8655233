"""Calls and results that stand as text: `<tool_call>` with JSON, and `<tool_response>` (Hermes, Qwen).

JSON is decoded first, so that a closing tag within a string ends nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from warehouse.bounds import TOO_DEEP, is_too_deep, unique_object
from warehouse.importers.runs import MalformedRow
from warehouse.replies import fences

_CALL = re.compile(r"<tool_call>\s*(?=[{\[])")
_CALL_END = re.compile(r"\s*(?:</tool_call>|\Z)")
_OTHER = re.compile(
    r"\s*(?:\[TOOL_CALLS\]|<\|python_tag\|>|<function_call>|<function=|<tool_call>\s*(?:<function=|\w+\s*<arg_key>)|<\|tool_call)"
)
"""How a text begins that is a call in a syntax which is not read."""
_RESPONSE = "<tool_response>"
_RESPONSE_CLOSED = re.compile(r"\s*</tool_response>")
_ANY_RESPONSE_END = re.compile(r"\n?</tool_response>")
_RESPONSE_END = re.compile(r"\n?</tool_response>(?=\s*(?:<tool_response>|\Z))")
_DECODER = json.JSONDecoder(object_pairs_hook=unique_object)


@dataclass(frozen=True, slots=True)
class TextCall:
    """A call in a text: where it stands, tags included, and its JSON."""

    start: int
    end: int
    value: Any


def find_text_calls(text: str, start: int = 0) -> Iterator[TextCall]:
    """The calls of a text outside of closed fences. Raises MalformedRow for one that is not JSON."""
    guards = [(fence.start, fence.end) for fence in fences(text) if fence.closed]
    place = start
    while (opening := _CALL.search(text, place)) is not None:
        place = opening.end()
        if any(begin < opening.start() < end for begin, end in guards):
            continue
        try:
            value, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise MalformedRow(f"has a call in its text that is not JSON: {error}") from error
        closing = _CALL_END.match(text, end)
        if closing is None or is_too_deep(value):
            why = TOO_DEEP if closing else "text stands between its JSON and </tool_call>"
            raise MalformedRow(f"has a call in its text that is not JSON: {why}")
        place = closing.end()
        yield TextCall(opening.start(), place, value)


def read_text_calls(text: str) -> tuple[str, list[Any]]:
    """The text without its calls, and the calls. Raises MalformedRow for a call that cannot be read."""
    if _OTHER.match(text):
        raise MalformedRow(f"has a call in a syntax that is not read: {text.strip()[:40]!r}")
    rest, calls, place = "", [], 0
    for call in find_text_calls(text):
        rest, place = rest + text[place : call.start], call.end
        calls += call.value if isinstance(call.value, list) else [call.value]
    return ((rest + text[place:]).strip(), calls) if calls else (text, [])


def read_responses(text: str) -> tuple[list[str], str] | None:
    """The results in a text that begins with `<tool_response>`, and what follows them; None where it does not, or one is not closed."""
    found: list[str] = []
    rest = text.strip()
    while rest.startswith(_RESPONSE):
        inside = rest[len(_RESPONSE) :]
        end, behind = _response_end(inside)
        if end < 0:
            return None
        found.append(inside[:end].removeprefix("\n"))
        rest = inside[behind:].strip()
    return (found, rest) if found else None


def _response_end(inside: str) -> tuple[int, int]:
    """Where a result ends, and what is behind its closing tag; -1 where nothing closes it."""
    json_begin = len(inside) - len(inside.lstrip())
    if inside[json_begin : json_begin + 1] in ("{", "["):
        try:
            _, end = json.JSONDecoder().raw_decode(inside, json_begin)
        except (ValueError, RecursionError):
            end = -1
        closing = _RESPONSE_CLOSED.match(inside, end) if end >= 0 else None
        if closing is not None:
            return end, closing.end()
    closing = _RESPONSE_END.search(inside) or _ANY_RESPONSE_END.search(inside)
    return (closing.start(), closing.end()) if closing else (-1, -1)
