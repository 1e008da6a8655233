"""Chat messages shared by importers, and their conversion to turns.

An assistant message is a turn with its calls. A result belongs to the call with its id, in any order; a reused id refers to the latest
call. Results without ids are assigned to the calls of the preceding message in order, if the numbers match. A call may lack a result
(outcome None); unrequested and ambiguous results make the row malformed. Later user messages are observations of the preceding turn. The
last message is the answer if it is the assistant's and has no calls; otherwise the run was cut off.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from warehouse.importers.runs import MalformedRow, as_json
from warehouse.records import ANSWER, Call, Turn


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str | None
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message.

    Attributes:
        role: system, user, assistant or tool.
        answers, tool: id and tool of the call that a tool message answers.
        weight: 0 if the message is excluded from training.
        item: whether it is one of several items of a response.
    """

    role: str
    text: str
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: str | None = None
    tool: str | None = None
    outcome: str = "ok"
    weight: int = 1
    item: bool = False

    @property
    def only_thought(self) -> bool:
        return bool(self.thought) and not self.text.strip() and not self.calls

    @property
    def awaits_results(self) -> bool:
        return bool(self.calls) or self.role == "tool"


@dataclass(slots=True)
class _Draft:
    """A turn under construction: message, results by call index, and later replies."""

    message: ChatMessage
    results: dict[int, ChatMessage] = field(default_factory=dict)
    replies: list[str] = field(default_factory=list)


_Waiting = list[tuple[_Draft, int]]
"""Calls without a result, oldest first, as (turn, call index)."""


def question_of(messages: Sequence[ChatMessage]) -> str:
    """First question of the user, in one or more messages, possibly after a greeting. Raises MalformedRow if empty."""
    begin = next((number for number, message in enumerate(messages) if message.role == "user"), len(messages))
    end = next((number for number in range(begin, len(messages)) if messages[number].role == "assistant"), len(messages))
    question = "\n\n".join(message.text for message in messages[begin:end] if message.role == "user")
    if not question.strip():
        raise MalformedRow("the first user message is missing or empty")
    return question


def turns_of_messages(messages: Sequence[ChatMessage], closed: bool = False) -> tuple[Turn, ...]:
    """Assistant messages as turns, without token ids and times. Raises MalformedRow for unrequested or ambiguous results.

    Args:
        closed: the assistant's last text is the answer even if a user message follows.
    """
    drafts: list[_Draft] = []
    waiting: _Waiting = []
    for is_result, group in groupby(enumerate(messages), key=lambda one: one[1].role == "tool"):
        if is_result:
            _assign(list(group), waiting)
            continue
        for _, message in group:
            if message.role == "assistant":
                drafts.append(_Draft(message))
                waiting += [(drafts[-1], place) for place in range(len(message.calls))]
            elif drafts:
                drafts[-1].replies.append(message.text)
    return tuple(_turn(index, draft, closed and index == len(drafts) - 1, index == len(drafts) - 1) for index, draft in enumerate(drafts))


def unlearnt_turns(messages: Sequence[ChatMessage]) -> list[int]:
    """Indices of turns excluded from training."""
    return [index for index, message in enumerate(one for one in messages if one.role == "assistant") if not message.weight]


def _assign(results: list[tuple[int, ChatMessage]], waiting: _Waiting) -> None:
    """Match a group of results to waiting calls: by id, then by tool name, then in order."""
    without_ids = all(_request(one).id is None for one in waiting)
    left: list[tuple[int, ChatMessage]] = []
    for number, result in results:
        if result.answers is None or (without_ids and waiting):
            left.append((number, result))
        else:
            _give(waiting, _by_id(number, result, waiting), result)
    for tool in dict.fromkeys(result.tool for _, result in left if result.tool is not None):
        _in_order([(number, result) for number, result in left if result.tool == tool], waiting, tool)
    _in_order([(number, result) for number, result in left if result.tool is None], waiting, None)


def _request(one: tuple[_Draft, int]) -> ToolCall:
    return one[0].message.calls[one[1]]


def _give(waiting: _Waiting, place: int, result: ChatMessage) -> None:
    draft, call = waiting.pop(place)
    draft.results[call] = result


def _by_id(number: int, result: ChatMessage, waiting: _Waiting) -> int:
    """Waiting call with the result's id: the latest, which must be unique within its message."""
    found = [place for place, one in enumerate(waiting) if _request(one).id == result.answers]
    if not found:
        raise MalformedRow(f"message {number} is the result of a call that was not made: {result.answers}")
    latest = [place for place in found if waiting[place][0] is waiting[found[-1]][0]]
    named = [place for place in latest if result.tool is not None and _request(waiting[place]).tool == result.tool]
    if len(latest) > 1 and len(named) != 1:
        raise MalformedRow(f"message {number} is the result of the call {result.answers!r}, but several calls have this id")
    return named[0] if len(latest) > 1 else latest[0]


def _in_order(results: list[tuple[int, ChatMessage]], waiting: _Waiting, tool: str | None) -> None:
    """Match results without ids to the latest message's calls in order, or to all waiting calls, if the numbers match."""
    if not results:
        return
    number = results[0][0]
    fitting = [place for place, one in enumerate(waiting) if tool in (None, _request(one).tool)]
    if not fitting:
        raise MalformedRow(f"message {number} is the result of a call that was not made: {tool or 'it names none'}")
    latest = [place for place in fitting if waiting[place][0] is waiting[fitting[-1]][0]]
    places = latest if len(latest) == len(results) else fitting
    if len(places) != len(results):
        raise MalformedRow(f"message {number}: {len(results)} results without ids follow {len(latest)} calls, so they cannot be matched")
    for place, (_, result) in sorted(zip(places, results, strict=True), key=lambda one: one[0], reverse=True):
        _give(waiting, place, result)


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
    thought = [f"<think>\n{message.thought}\n</think>"] if message.thought else []
    calls = [f'<tool_call>\n{{"name": {as_json(one.tool)}, "arguments": {_json(one.arguments)}}}\n</tool_call>' for one in message.calls]
    return "\n".join([*thought, *([message.text] if message.text else []), *calls])


def _json(arguments: str) -> str:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return as_json(arguments)
    return arguments
