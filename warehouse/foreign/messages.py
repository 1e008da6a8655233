"""Chat messages with tool calls, in the form of OpenAI's API, as turns; what several formats are made of.

An assistant's message is a turn with all its calls, and each call gets the result that names it, wherever that stands: results may come
in another order, and ids may be used again later in a run. A call without a result keeps none (its outcome is empty); a result without a
call is a fault of the row. What a user says later is an observation of the turn before it. The last message, if it is the
assistant's and calls nothing, is the answer.

The text of an action is a view: thought, text and calls in the tags of Hermes. The messages themselves are for the reader to keep.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from warehouse.foreign.runs import RowFault
from warehouse.records import ANSWER, Call, Turn

_ROLES = {"developer": "system", "function": "tool"}
_TEXTS = ("text", "refusal", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as it was asked for."""

    id: str | None
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message: `role` is system, user, assistant or tool; `answers` and `tool` name the call that a tool's message is the result of."""

    role: str
    text: str
    thought: str = ""
    calls: tuple[Asked, ...] = ()
    answers: str | None = None
    tool: str | None = None
    outcome: str = "ok"


@dataclass(slots=True)
class _Draft:
    """A turn that is being gathered: what was written, the results by call, and what was said after it."""

    message: Message
    results: dict[int, Message] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)


def read_messages(value: Any) -> list[Message]:
    """The messages of a list in OpenAI's form. Raises RowFault with the number of the message that is not of it."""
    if not isinstance(value, list):
        raise RowFault("the row has no list of messages")
    return [_message(message, number) for number, message in enumerate(value)]


def question_of(messages: Sequence[Message]) -> str:
    """What the user said before the assistant first spoke. Raises RowFault where that is nothing."""
    first = next((number for number, message in enumerate(messages) if message.role == "assistant"), len(messages))
    question = "\n\n".join(message.text for message in messages[:first] if message.role == "user")
    if not question.strip():
        raise RowFault("no user asks anything before the assistant speaks")
    return question


def turns_of_messages(messages: Sequence[Message], closed: bool = False) -> tuple[Turn, ...]:
    """The assistant's messages as turns; no token ids and no times, for none were recorded.

    Args:
        closed: the run is over although a user had the last word, so that the assistant's last text is its answer.

    Raises:
        RowFault: a result that no call asked for.
    """
    drafts: list[_Draft] = []
    waiting: list[tuple[_Draft, int]] = []
    for number, message in enumerate(messages):
        if message.role == "assistant":
            drafts.append(_Draft(message))
            waiting += [(drafts[-1], place) for place in range(len(message.calls))]
        elif message.role == "tool":
            draft, place = waiting.pop(_asked_for(message, waiting, number))
            draft.results[place] = message
        elif drafts:
            drafts[-1].said.append(message.text)
    return tuple(_turn(index, draft, closed and index == len(drafts) - 1, index == len(drafts) - 1) for index, draft in enumerate(drafts))


def _asked_for(result: Message, waiting: list[tuple[_Draft, int]], number: int) -> int:
    """The place in `waiting` of the call that `result` is of: by its id the latest, else the first of the latest message."""
    asked = [draft.message.calls[place] for draft, place in waiting]
    if result.answers is not None:
        found = [place for place, call in enumerate(asked) if call.id == result.answers][-1:]
    else:
        named = [place for place, call in enumerate(asked) if result.tool in (None, call.tool)]
        found = [place for place in named if waiting[place][0] is waiting[named[-1]][0]]
    if not found:
        raise RowFault(f"message {number} is the result of a call that was not made: {result.answers or result.tool or 'it names none'}")
    return found[0]


def _turn(index: int, draft: _Draft, closed: bool, last: bool) -> Turn:
    message = draft.message
    calls = tuple(_call(asked, draft.results.get(place)) for place, asked in enumerate(message.calls))
    answered = last and not calls and (closed or not draft.said) and bool(message.text.strip())
    if answered:
        calls = (Call(ANSWER, message.text, None),)
    observation = "\n".join([*(call.observation for call in calls if call.outcome is not None), *draft.said])
    tool, arguments, outcome = (calls[0].tool, calls[0].arguments, calls[0].outcome) if calls else (None, None, None)
    return Turn(index, (), (), action_text(message), tool, arguments, (), observation, None, outcome, None, 0, calls=calls)


def _call(asked: Asked, result: Message | None) -> Call:
    if result is None:
        return Call(asked.tool, asked.arguments, None)
    return Call(asked.tool, asked.arguments, result.outcome, result.text)


def action_text(message: Message) -> str:
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


def _message(message: Any, number: int) -> Message:
    if not isinstance(message, dict):
        raise RowFault(f"message {number} is no object")
    role = message.get("role")
    role = _ROLES.get(role, role) if isinstance(role, str) else role
    if role not in ("system", "user", "assistant", "tool"):
        raise RowFault(f"message {number} has the role {message.get('role')!r}")
    text = content_text(message.get("content"), number)
    if role == "tool":
        return Message("tool", text, answers=_text_or_none(message.get("tool_call_id")), tool=_text_or_none(message.get("name")))
    if role != "assistant":
        return Message(role, text)
    thought = _text_or_none(message.get("reasoning_content")) or _text_or_none(message.get("reasoning")) or ""
    return Message(role, text or _text_or_none(message.get("refusal")) or "", thought, _calls(message, number))


def content_text(content: Any, number: int) -> str:
    """The text of a message's content: none, a text, or parts; a part that is no text stands as its type in brackets."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise RowFault(f"message {number} has a content that is neither text nor parts")
    found = [next((part[name] for name in _TEXTS if isinstance(part.get(name), str)), None) for part in content]
    return "".join(f"[{part.get('type')}]" if text is None else text for part, text in zip(content, found, strict=True))


def _calls(message: dict[str, Any], number: int) -> tuple[Asked, ...]:
    """The calls of a message; `function_call` is the older form of one."""
    calls = message.get("tool_calls") or ([message["function_call"]] if message.get("function_call") else [])
    if not isinstance(calls, list):
        raise RowFault(f"message {number} has tool_calls that are no list")
    return tuple(_asked(call, number) for call in calls)


def _asked(call: Any, number: int) -> Asked:
    """A call: `function` or `custom` within it, or name and arguments at once; some exports write it as a text of JSON."""
    if isinstance(call, str):
        try:
            call = json.loads(call)
        except ValueError as error:
            raise RowFault(f"message {number} has a call that is not JSON: {error}") from error
    inner = (call.get("function") or call.get("custom") or call) if isinstance(call, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise RowFault(f"message {number} has a call without a name")
    arguments = inner.get("arguments", inner.get("input", ""))
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Asked(_text_or_none(call.get("id")), inner["name"], written)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
