"""Split model replies into reasoning, content and code fences; build the JSON schema that constrains a reply.

Verifiers, importers, parsers and environments share these functions, so a reply is read the same way everywhere. A closing mark such as
`</think>` is ignored in a closed fence, in its own quotes, and inside the JSON of a call. No function raises.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

_NAMES = "think|thinking|thought|thoughts|reasoning|reason|analysis|scratchpad|seed:think"
_OPENING = re.compile(
    rf"<({_NAMES})>|(\[THINK\])|(◁think▷)|<\|channel\|>(?:analysis|commentary)<\|message\|>|(<\|begin_of_thought\|>)", re.IGNORECASE
)
_UNOPENED = re.compile(r"</(?:think|thinking|seed:think)>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>", re.IGNORECASE)
"""Marks that may end reasoning opened in the prompt."""
_FINAL_CHANNEL = re.compile(
    r"(?:<\|end\|>)?\s*(?:<\|start\|>\s*assistant)?\s*<\|channel\|>\s*final\s*(?:<\|constrain\|>\w*\s*)?<\|message\|>|<\|end\|>",
    re.IGNORECASE,
)
_LATER = re.compile(rf"^[ \t]*(?:{_OPENING.pattern})", re.IGNORECASE | re.MULTILINE)
_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?:>[ \t]?)*(?P<mark>`{3,}|~{3,})[ \t]*(?P<info>[^\n`]*)$", re.MULTILINE)
_CALL = re.compile(r"<tool_call>\s*(?=\{)|\A\s*(?=[{\[])")
_QUOTES = "\"'`"
_MOST_BLOCKS = 32
"""Maximum reasoning blocks removed from one reply."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block: lower-case language (empty if none), text, and span including marks."""

    language: str
    body: str
    start: int
    end: int
    closed: bool


def split_reasoning(text: str, opened: bool = False) -> tuple[str, str]:
    """Split a reply into reasoning and the rest, both stripped.

    Unclosed reasoning extends to the end. Without an opening mark, all text before a closing one is reasoning. Closed blocks at the start
    of later lines are removed too.

    Args:
        opened: whether the prompt already opened the reasoning, as some chat templates do.
    """
    begun = _OPENING.match(text, len(text) - len(text.lstrip()))
    if begun:
        thought, rest = _close(text, begun)
    elif (end := next(_unguarded(text, _UNOPENED), None)) is not None and (opened or not _in_call(text, end.start())):
        thought, rest = text[: end.start()], text[end.end() :]
    elif opened:
        return text.strip(), ""
    else:
        thought, rest = "", text
    thoughts = [thought]
    while len(thoughts) < _MOST_BLOCKS and (later := _later_block(rest)) is not None:
        thought, after = _close(rest, later)
        thoughts.append(thought)
        rest = rest[: later.start()] + after
    return "\n".join(filter(None, map(str.strip, thoughts))), rest.strip()


def fences(text: str) -> list[Fence]:
    """Fenced blocks of a text, of backticks or tildes, approximately as in CommonMark."""
    found: list[Fence] = []
    opening: re.Match[str] | None = None
    for mark in _FENCE.finditer(text):
        if opening is None:
            opening = mark
        elif mark["mark"].startswith(opening["mark"]) and not mark["info"].strip() and len(mark["indent"]) <= len(opening["indent"]) + 3:
            found.append(_fence(text, opening, mark.start(), mark.end(), True))
            opening = None
    return found if opening is None else [*found, _fence(text, opening, len(text), len(text), False)]


def only_fence(text: str) -> Fence | None:
    """The fenced block if the text consists of nothing else, or None."""
    found = fences(text)
    alone = len(found) == 1 and not text[: found[0].start].strip() and not text[found[0].end :].strip()
    return found[0] if alone else None


def _fence(text: str, opening: re.Match[str], stop: int, end: int, closed: bool) -> Fence:
    words = opening["info"].strip().lstrip("{.").split()
    language = re.split(r"[^\w+#-]", words[0].lower(), maxsplit=1)[0] if words else ""
    return Fence(language, text[opening.end() + 1 : max(stop, opening.end() + 1)].removesuffix("\n"), opening.start(), end, closed)


def _close(text: str, begun: re.Match[str]) -> tuple[str, str]:
    """Text between an opening mark and its closing mark, and the text after; all text if unclosed."""
    ending = next(_unguarded(text, _ending_of(begun), begun.end()), None)
    if ending is None:
        return text[begun.end() :], ""
    return text[begun.end() : ending.start()], text[ending.end() :]


def _ending_of(begun: re.Match[str]) -> re.Pattern[str]:
    if begun[1]:
        return re.compile(rf"</{re.escape(begun[1])}>", re.IGNORECASE)
    closings = {"[think]": r"\[/THINK\]", "◁think▷": "◁/think▷", "<|begin_of_thought|>": r"<\|end_of_thought\|>"}
    closing = closings.get(begun[0].lower())
    return re.compile(closing, re.IGNORECASE) if closing else _FINAL_CHANNEL


def _later_block(text: str) -> re.Match[str] | None:
    """First opening mark at the start of a line that is closed later."""
    found = next(_unguarded(text, _LATER), None)
    begun = found and _OPENING.search(text, found.start())
    if begun is None or _in_call(text, begun.start()):
        return None
    return begun if next(_unguarded(text, _ending_of(begun), begun.end()), None) else None


def _unguarded(text: str, pattern: re.Pattern[str], start: int = 0) -> Iterator[re.Match[str]]:
    """Matches from `start` on that are neither in a closed fence nor in their own quotes."""
    if pattern.search(text, start) is None:  # most replies have none; skip the search for fences
        return
    guards = [(text.index("\n", fence.start), fence.end) for fence in fences(text) if fence.closed and fence.start >= start]
    begins = [begin for begin, _ in guards]
    for found in pattern.finditer(text, start):
        before, after = text[max(found.start() - 1, 0) : found.start()], text[found.end() : found.end() + 1]
        quoted = before in _QUOTES and before == after and before != ""
        last = bisect_right(begins, found.start()) - 1
        if not quoted and (last < 0 or found.start() >= guards[last][1]):
            yield found


def _in_call(text: str, place: int) -> bool:
    """Whether a position is inside the JSON of a call, or of a reply that is JSON."""
    for call in _CALL.finditer(text, 0, place):
        try:
            _, end = json.JSONDecoder().raw_decode(text, call.end())
        except (ValueError, RecursionError):
            continue
        if call.end() <= place < end:
            return True
    return False


@cache
def form_of(shape: TypeAdapter[Any], **values: tuple[str, ...] | str) -> str:
    """JSON schema of `shape` for constrained decoding, without titles and descriptions, so that docstrings never change a request.

    Objects allow no additional properties, since models would invent them. Properties keep their declaration order, which grammars enforce.
    `values` restricts properties to the given texts, or to those that a regular expression matches.
    """
    form = _narrowed(shape.json_schema())
    for name, allowed in values.items():
        chosen = {"pattern": allowed} if isinstance(allowed, str) else {"enum": list(allowed)}
        form["properties"][name] = {**chosen, "type": "string"}
    return json.dumps(form)


def _narrowed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_narrowed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key for key in ("title", "description") if isinstance(schema.get(key), str)}
    closed = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return {**closed, **{key: _narrowed(value) for key, value in schema.items() if key not in said}}
