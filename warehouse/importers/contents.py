"""The content of one message: text, or parts of OpenAI's, Anthropic's and other APIs, as text, reasoning, calls and results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from warehouse.importers.runs import MalformedRow

TEXTS = ("text", "input_text", "output_text", "refusal")
THOUGHTS = ("thinking", "reasoning", "redacted_thinking", "reasoning_text", "summary_text", "thought", "redacted_reasoning")
_CALLS = ("tool_use", "tool_call", "tool-call")
_RESULTS = ("tool_result", "tool-result")
_MEDIA = ("image", "image_url", "input_image", "audio", "input_audio", "video", "video_url", "file", "input_file", "document")
PARTS = frozenset({*TEXTS, *THOUGHTS, *_CALLS, *_RESULTS, *_MEDIA})
"""The types of parts that are known; a list of other objects is a tool's JSON."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call, as a part."""

    call: str | None
    text: str
    outcome: str


@dataclass(slots=True)
class Content:
    """What the parts of a message hold."""

    text: str = ""
    thought: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)


def read_content(value: Any, result: bool = False) -> Content:
    """The content of a message; of a tool's (`result`), what is neither text nor parts is JSON.

    Raises:
        MalformedRow: a part is no text (an image, a file), or of no known type.
    """
    if value is None or isinstance(value, str):
        return Content(value or "")
    parts = value if isinstance(value, list) else [value]
    if result and not (parts and all(isinstance(part, dict) and part.get("type") in PARTS and _is_part(part) for part in parts)):
        return Content(as_json(value))
    found = Content()
    if parts and all(isinstance(part, str) for part in parts):
        return Content("\n".join(parts))
    for part in parts:
        _add_part(found, part)
    found.thought = found.thought.strip()
    return found


def _is_part(part: dict[str, Any]) -> bool:
    """Whether an object of a tool's JSON is a part of text or media: beside its type it has what that type holds."""
    kind = str(part["type"])
    return kind in part or any(name in part for name in ("text", "image_url", "source", "data", "content", "id"))


def _add_part(found: Content, part: Any) -> None:
    if not isinstance(part, dict):
        raise MalformedRow("has a content that is neither text nor parts")
    kind = part.get("type")
    if kind is None and isinstance(part.get("text"), str):
        kind = "text"
    if kind in TEXTS:
        found.text += _own_text(part, "text", "refusal", "content")
    elif kind in THOUGHTS:
        found.thought += f"{text_of(part)}\n"
    elif kind in _CALLS and any(part.get(name) is not None for name in ("input", "arguments", "args", "function")) and "result" not in part:
        found.calls.append({**part, "id": part.get("id") or part.get("toolCallId"), "name": part.get("name") or part.get("toolName")})
    elif kind in _RESULTS:
        found.results.append(_result(part))
    else:
        what = f"has a part of the type {kind!r:.60}"
        raise MalformedRow(f"{what}, and only text is imported" if kind in _MEDIA else f"{what}, which is not read")


def _own_text(part: dict[str, Any], *names: str) -> str:
    text = next((part[name] for name in names if isinstance(part.get(name), str)), None)
    if text is None:
        raise MalformedRow(f"has a part of the type {part.get('type')!r:.60} without a text")
    return text


def _result(part: dict[str, Any]) -> Result:
    identity = next((part[name] for name in ("tool_use_id", "tool_call_id", "toolCallId") if part.get(name)), None)
    given = next((part[name] for name in ("content", "output", "result") if part.get(name) is not None), None)
    failed = part.get("is_error") is True or part.get("isError") is True
    return Result(identity if isinstance(identity, str) else None, read_content(given, result=True).text, "error" if failed else "ok")


def text_of(value: Any) -> str:
    """The text of reasoning, however deep it stands in parts and summaries; what is encrypted has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(text_of, value)))
    if isinstance(value, dict):
        names = ("text", "thinking", "reasoning", "thought", "content", "summary")
        return next((text for name in names if (text := text_of(value.get(name)))), "")
    return ""


def as_json(value: Any) -> str:
    """The JSON text of a value."""
    return json.dumps(value, ensure_ascii=False)
