"""Render a client's chat messages as tokens with the policy's chat template: once for the prompt, then only appending.

Texts go into slots of the markup, so nothing that a client or a tool says becomes a control token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl.renderers.base import ParseError, Schema
from rl.renderers.chat import ChatDialect
from rl.renderers.chat_template import ARGUMENT_NAME, PROBE_TEXT, Filter, Message, TemplateRefused, call_id, slot, tool_call
from rl.serving.protocol import ChatMessage, Refused
from warehouse.errors import RequestError
from warehouse.records import ANSWER
from warehouse.replies import split_reasoning

_NAMES, _ARGUMENTS = 1_000_000, 2_000_000
"""First slot numbers of the reply's names and arguments; lower numbers are the messages' contents, in order."""
_ASKED: Message = {"role": "user", "content": "a"}
_ROLES = {"developer": "system"}
_CALL_FIRST = re.compile(r"\s*[{\[<`]")
"""A reply that may be calls as a whole."""
_CALL_LATER = re.compile(r"<tool_call|```\w*\s*(?:\Z|[{\[<])")
"""Where calls may begin after text."""
_MARKS = ("<think>", "</think>", "<tool_call", "```")


class ChatRenderer:
    """Renderer of one policy's chat template."""

    def __init__(self, dialect: ChatDialect) -> None:
        self.dialect = dialect
        self._template = dialect.template
        self._filters: dict[str, Filter] = {"user": dialect.layout.question_filter, "tool": dialect.layout.result_filter}

    def prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Schema]) -> tuple[int, ...]:
        """Token ids of a conversation up to the generation prompt.

        Raises:
            Refused: the template cannot render it, or a call or tool in it contains a control token.
        """
        shaped = [self._shaped(number, message, {}) for number, message in enumerate(messages)]
        return self._encoded(shaped, self._texts(messages, 0), tools)

    def extension(
        self,
        before: Sequence[ChatMessage],
        reply: ChatMessage,
        reply_ids: Sequence[int],
        added: Sequence[ChatMessage],
        tools: Sequence[Schema],
    ) -> tuple[int, ...]:
        """Token ids to append after the sampled `reply_ids`, for the messages `added`. Raises as `prompt` does."""
        names = {call.id: slot(_NAMES + number) for number, call in enumerate(reply.calls)}
        messages = [*before, reply, *added]
        shaped = [self._shaped(number, message, names) for number, message in enumerate(messages)]
        place = len(before)
        # Give even an empty reply a slot, because the text after it is located by that slot.
        shaped[place] = _reply_message(reply) if reply.calls else {"role": "assistant", "content": slot(place)}
        self._refuse_control_tokens(shaped[place + 1 :])
        mark = _ARGUMENTS + len(reply.calls) - 1 if reply.calls else place
        texts = self._texts(messages, place + 1) | {_NAMES + number: call.function.name for number, call in enumerate(reply.calls)}
        try:
            pieces = self._template.pieces(shaped, tools, generate=True)
        except TemplateRefused as error:
            raise Refused(f"the policy's chat template cannot render these messages: {error}") from error
        stop, rest = self._template.after_stop(pieces, mark)
        if stop is None:
            raise Refused("the policy's chat template does not end such a message with a special token")
        layout = self.dialect.layout
        ended = bool(reply_ids) and reply_ids[-1] in {self._template.special[end] for end in (layout.call_stop, layout.answer_stop)}
        return (() if ended else (self._template.special[stop],)) + self._template.encode(rest, texts)

    def reply(self, reply_ids: Sequence[int], tools: Sequence[Schema], first_call: int) -> tuple[ChatMessage, str | None]:
        """The policy's message for the client, and its reasoning; calls are numbered from `first_call`.

        `tools` are the offered tools. Ids that parse neither as calls nor as an answer are returned as text.
        """
        turn = self.dialect.parse(reply_ids, tools)
        ended = bool(reply_ids) and reply_ids[-1] in self.dialect.stop_token_ids
        thought, content = split_reasoning(self.dialect.decode(reply_ids[:-1] if ended else reply_ids), self.dialect.layout.opens_thought)
        if isinstance(turn, ParseError) or (not tools and turn.calls[0].tool != ANSWER):
            return ChatMessage(role="assistant", content=content), thought or None
        if turn.calls[0].tool == ANSWER:
            return ChatMessage(role="assistant", content=turn.calls[0].arguments), thought or None
        calls = [tool_call(call_id(first_call + number), action.tool, action.arguments) for number, action in enumerate(turn.calls)]
        spoken = _before_calls(content).strip() or None
        return ChatMessage.model_validate({"role": "assistant", "content": spoken, "tool_calls": calls}), thought or None

    def certain(self, text: str, tools: Sequence[Schema]) -> tuple[str, str]:
        """The reasoning and content that a reply beginning with `text` will have in any case."""
        thought, content = split_reasoning(_without_begun_mark(text), self.dialect.layout.opens_thought)
        return thought, (_before_calls(content) if tools else content).partition("<think>")[0].rstrip()

    def _encoded(self, shaped: Sequence[Message], texts: Mapping[int, str], tools: Sequence[Schema]) -> tuple[int, ...]:
        self._refuse_control_tokens(shaped)
        try:
            self._template.refuse_control_tokens(tools)
            return self._template.encode(self._template.pieces(shaped, tools, generate=True), texts)
        except TemplateRefused as error:
            raise Refused(f"the policy's chat template cannot render these messages: {error}") from error
        except RequestError as error:
            raise Refused(str(error)) from error

    def _refuse_control_tokens(self, shaped: Sequence[Message]) -> None:
        """Check calls and result ids, which templates write into the markup instead of slots."""
        for message in shaped:
            for written in (*message.get("tool_calls", ()), message.get("tool_call_id", "")):
                try:
                    self._template.refuse_spelled(json.dumps(written, ensure_ascii=False))
                except TemplateRefused as error:
                    raise Refused(f"a call in these messages cannot be rendered: {error}") from error

    def _shaped(self, number: int, message: ChatMessage, names: Mapping[str, str]) -> dict[str, Any]:
        """A message for the template, its text in a slot; `names` are slots for the names of answered calls."""
        shaped: dict[str, Any] = {"role": _ROLES.get(message.role, message.role), "content": slot(number) if message.text else ""}
        if message.calls:
            shaped["tool_calls"] = [tool_call(call.id, call.function.name, _arguments(call.function.arguments)) for call in message.calls]
        if message.role == "tool":
            shaped |= {"content": slot(number), "tool_call_id": message.tool_call_id, "name": names.get(message.tool_call_id or "", "tool")}
        return shaped

    def _texts(self, messages: Sequence[ChatMessage], start: int) -> dict[int, str]:
        """Contents of the slots of messages from `start` on, filtered as the template does."""
        return {number: self._filter(message.role)(message.text) for number, message in enumerate(messages) if number >= start}

    def _filter(self, role: str) -> Filter:
        role = _ROLES.get(role, role)
        if role not in self._filters:
            try:
                self._filters[role] = self._find_filter(role)
            except TemplateRefused as error:
                raise Refused(f"the policy's chat template cannot be used with messages of role {role}: {error}") from error
        return self._filters[role]

    def _find_filter(self, role: str) -> Filter:
        """The template's filter for texts of `role`: none, or strip."""
        framed, shown = (self._template.render(_conversation_with(role, text), [], generate=True) for text in (slot(0), PROBE_TEXT))
        for candidate in (str, str.strip):
            if shown == framed.replace(slot(0), candidate(PROBE_TEXT)):
                return candidate
        raise TemplateRefused("it changes their text other than by stripping or JSON escapes")


def _conversation_with(role: str, text: str) -> list[Message]:
    message: Message = {"role": role, "content": text}
    return [message, _ASKED] if role == "system" else [_ASKED, message, _ASKED]


def _reply_message(reply: ChatMessage) -> dict[str, Any]:
    """The policy's own message of calls, without its text, which was sampled already."""
    calls = [
        tool_call(call.id, slot(_NAMES + number), {ARGUMENT_NAME: slot(_ARGUMENTS + number)}) for number, call in enumerate(reply.calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _arguments(text: str) -> Any:
    """Parse arguments to an object, as templates expect."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the arguments of a call are not JSON: {text[:80]!r}") from error


def _before_calls(content: str) -> str:
    """The part of a reply's content that precedes all text that may be a call."""
    if _CALL_FIRST.match(content):
        return ""
    found = _CALL_LATER.search(content)
    return content if found is None else content[: found.start()]


def _without_begun_mark(text: str) -> str:
    """`text` without an end that may become a mark."""
    begun = [mark for mark in _MARKS if not text.endswith(mark)]
    longest = max((size for mark in begun for size in range(1, len(mark)) if text.endswith(mark[:size])), default=0)
    return text[: len(text) - longest]
