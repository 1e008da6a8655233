"""Chat messages with tool calls in the form of OpenAI's API, as turns: a reader of their own, and what several formats are made of.

An assistant's message is a turn with all its calls, and each call gets the result that names it, wherever that stands: results may come
in another order, and ids may be used again later in a run. A call without a result keeps none (its outcome is empty); a result without a
call is a fault of the row. What a user says later is an observation of the turn before it. The last message, if it is the
assistant's and calls nothing, is the answer; a run that ends otherwise was broken off.

A row of the format itself has `messages`, and may have `id`, `model`, `tools`, `answer` or `answers` (what is accepted), and `reward` or
`score`; full marks are a success. JSON lines, or one list. Nothing is lost: the row stands in `provenance` as it was. The text of an action
is a view: thought, text and calls in the tags of Hermes; parts that are no text (images, audio) stand there as their type in brackets.
Token ids and times are not in the format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warehouse.bounds import read_json
from warehouse.importers.runs import (
    ImportedRuns,
    MalformedRow,
    RunCollector,
    RunEnd,
    number_of,
    read_rows,
    task_of,
    texts_of,
    verdict_of,
)
from warehouse.json_rows import Row
from warehouse.records import ANSWER, Call, Turn

FORMAT = "openai"
_ROLES = {"developer": "system", "function": "tool"}
_TEXTS = ("text", "refusal", "reasoning", "thinking")


def read_openai(path: Path) -> ImportedRuns:
    """Every run of a file, or of the `.jsonl` and `.json` files in a folder. Raises RequestError where there is no such file."""
    return read_rows(FORMAT, path, (".jsonl", ".json"), _read_row)


def _read_row(row: dict[str, Any], place: Row, collector: RunCollector) -> None:
    messages = read_messages(row.get("messages"))
    task = task_of(FORMAT, question_of(messages), texts_of(row.get("answer", row.get("answers"))))
    policy = row["model"] if isinstance(row.get("model"), str) else place.path.stem
    reward = number_of(row.get("reward", row.get("score")), "reward")
    collector.add_run(place, task, policy, turns_of_messages(messages), RunEnd(verdict_of(reward), reward), f"{FORMAT}_reward")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the assistant requested it."""

    id: str | None
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message: `role` is system, user, assistant or tool; `answers` and `tool` name the call that a tool's message is the result of."""

    role: str
    text: str
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: str | None = None
    tool: str | None = None
    outcome: str = "ok"


@dataclass(slots=True)
class _Draft:
    """A turn that is being gathered: what was written, the results by call, and what was said after it."""

    message: ChatMessage
    results: dict[int, ChatMessage] = field(default_factory=dict)
    replies: list[str] = field(default_factory=list)


def read_messages(value: Any) -> list[ChatMessage]:
    """The messages of a list in OpenAI's form. Raises MalformedRow with the number of the message that is not of it."""
    if not isinstance(value, list):
        raise MalformedRow("the row has no list of messages")
    return [_message(message, number) for number, message in enumerate(value)]


def question_of(messages: Sequence[ChatMessage]) -> str:
    """What the user said before the assistant first spoke. Raises MalformedRow where that is nothing."""
    first = next((number for number, message in enumerate(messages) if message.role == "assistant"), len(messages))
    question = "\n\n".join(message.text for message in messages[:first] if message.role == "user")
    if not question.strip():
        raise MalformedRow("no user asks anything before the assistant speaks")
    return question


def turns_of_messages(messages: Sequence[ChatMessage], closed: bool = False) -> tuple[Turn, ...]:
    """The assistant's messages as turns; no token ids and no times, for none were recorded.

    Args:
        closed: the run is over although a user had the last word, so that the assistant's last text is its answer.

    Raises:
        MalformedRow: a result that no call asked for.
    """
    drafts: list[_Draft] = []
    waiting: list[tuple[_Draft, int]] = []
    for number, message in enumerate(messages):
        if message.role == "assistant":
            drafts.append(_Draft(message))
            waiting += [(drafts[-1], place) for place in range(len(message.calls))]
        elif message.role == "tool":
            draft, place = waiting.pop(_index_of_call(message, waiting, number))
            draft.results[place] = message
        elif drafts:
            drafts[-1].replies.append(message.text)
    return tuple(_turn(index, draft, closed and index == len(drafts) - 1, index == len(drafts) - 1) for index, draft in enumerate(drafts))


def _index_of_call(result: ChatMessage, waiting: list[tuple[_Draft, int]], number: int) -> int:
    """The place in `waiting` of the call that `result` is of: by its id the latest, else the first of the latest message."""
    requests = [draft.message.calls[place] for draft, place in waiting]
    if result.answers is not None:
        found = [place for place, call in enumerate(requests) if call.id == result.answers][-1:]
    else:
        named = [place for place, call in enumerate(requests) if result.tool in (None, call.tool)]
        found = [place for place in named if waiting[place][0] is waiting[named[-1]][0]]
    if not found:
        raise MalformedRow(
            f"message {number} is the result of a call that was not made: {result.answers or result.tool or 'it names none'}"
        )
    return found[0]


def _turn(index: int, draft: _Draft, closed: bool, last: bool) -> Turn:
    message = draft.message
    calls = tuple(_call(request, draft.results.get(place)) for place, request in enumerate(message.calls))
    answered = last and not calls and (closed or not draft.replies) and bool(message.text.strip())
    if answered:
        calls = (Call(ANSWER, message.text, None),)
    observation = "\n".join([*(call.observation for call in calls if call.outcome is not None), *draft.replies])
    tool, arguments, outcome = (calls[0].tool, calls[0].arguments, calls[0].outcome) if calls else (None, None, None)
    return Turn(index, (), (), action_text(message), tool, arguments, (), observation, None, outcome, None, 0, calls=calls)


def _call(request: ToolCall, result: ChatMessage | None) -> Call:
    if result is None:
        return Call(request.tool, request.arguments, None)
    return Call(request.tool, request.arguments, result.outcome, result.text)


def action_text(message: ChatMessage) -> str:
    """What the assistant wrote, as one text."""
    thought = [f"<think>\n{message.thought}\n</think>"] if message.thought else []
    calls = [f'<tool_call>\n{{"name": {_quoted(one.tool)}, "arguments": {_json(one.arguments)}}}\n</tool_call>' for one in message.calls]
    return "\n".join([*thought, *([message.text] if message.text else []), *calls])


def _json(arguments: str) -> str:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return _quoted(arguments)
    return arguments


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _message(message: Any, number: int) -> ChatMessage:
    if not isinstance(message, dict):
        raise MalformedRow(f"message {number} is no object")
    role = message.get("role")
    role = _ROLES.get(role, role) if isinstance(role, str) else role
    if role not in ("system", "user", "assistant", "tool"):
        raise MalformedRow(f"message {number} has the role {message.get('role')!r}")
    text = content_text(message.get("content"), number)
    if role == "tool":
        return ChatMessage("tool", text, answers=_text_or_none(message.get("tool_call_id")), tool=_text_or_none(message.get("name")))
    if role != "assistant":
        return ChatMessage(role, text)
    thought = _text_or_none(message.get("reasoning_content")) or _text_or_none(message.get("reasoning")) or ""
    return ChatMessage(role, text or _text_or_none(message.get("refusal")) or "", thought, _calls(message, number))


def content_text(content: Any, number: int) -> str:
    """The text of a message's content: none, a text, or parts; a part that is no text stands as its type in brackets."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise MalformedRow(f"message {number} has a content that is neither text nor parts")
    found = [next((part[name] for name in _TEXTS if isinstance(part.get(name), str)), None) for part in content]
    return "".join(f"[{part.get('type')}]" if text is None else text for part, text in zip(content, found, strict=True))


def _calls(message: dict[str, Any], number: int) -> tuple[ToolCall, ...]:
    """The calls of a message; `function_call` is the older form of one."""
    calls = message.get("tool_calls") or ([message["function_call"]] if message.get("function_call") else [])
    if not isinstance(calls, list):
        raise MalformedRow(f"message {number} has tool_calls that are no list")
    return tuple(_tool_call(call, number) for call in calls)


def _tool_call(call: Any, number: int) -> ToolCall:
    """A call: `function` or `custom` within it, or name and arguments at once; some exports write it as a text of JSON."""
    if isinstance(call, str):
        try:
            call = read_json(call)
        except ValueError as error:
            raise MalformedRow(f"message {number} has a call that is not JSON: {error}") from error
    inner = (call.get("function") or call.get("custom") or call) if isinstance(call, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise MalformedRow(f"message {number} has a call without a name")
    arguments = inner.get("arguments", inner.get("input", ""))
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(_text_or_none(call.get("id")), inner["name"], written)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
