"""Render conversations for dialects without messages: one question, then calls and their results, until the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rl.renderers.base import ActionTurn, Dialect, NotExpressible, Result, Schema, Truncation, named_arguments
from rl.renderers.chat_template import call_id, tool_call
from rl.serving.protocol import ChatMessage, Refused
from warehouse.records import ANSWER

_ALL = Truncation(1_000_000)


class QuestionRenderer:
    """Renderer of one dialect, such as `tags`. A conversation has one user message and results of calls."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Schema]) -> tuple[int, ...]:
        """Token ids of the question. Raises Refused for any other conversation."""
        if [message.role for message in messages] != ["user"]:
            raise Refused("this policy answers one question per conversation: send one user message, and then only results of its calls")
        return self.dialect.prompt_ids(messages[0].text, tools=tools)

    def extension(
        self,
        before: Sequence[ChatMessage],
        reply: ChatMessage,
        reply_ids: Sequence[int],
        added: Sequence[ChatMessage],
        tools: Sequence[Schema],
    ) -> tuple[int, ...]:
        """Token ids to append after the sampled `reply_ids`: the results of its calls. Raises Refused for any other message."""
        if not reply.calls or [message.tool_call_id for message in added] != [call.id for call in reply.calls]:
            raise Refused("this policy answers one question per conversation: after its calls send their results, else begin another")
        return self.dialect.reply_ids(reply_ids, [Result(message.text) for message in added], _ALL)

    def reply(self, reply_ids: Sequence[int], tools: Sequence[Schema], first_call: int) -> tuple[ChatMessage, str | None]:
        """The policy's message for the client, and its reasoning; ids that do not parse are returned as text."""
        turn = self.dialect.parse(reply_ids, tools)
        if not isinstance(turn, ActionTurn):
            return ChatMessage(role="assistant", content=self.dialect.decode(reply_ids)), None
        if turn.calls[0].tool == ANSWER:
            return ChatMessage(role="assistant", content=turn.calls[0].arguments), turn.think
        try:
            named = [(call.tool, json.dumps(named_arguments(call.tool, call.arguments, tools), ensure_ascii=False)) for call in turn.calls]
        except NotExpressible:  # the tool was not offered
            return ChatMessage(role="assistant", content=self.dialect.decode(reply_ids)), None
        calls = [tool_call(call_id(first_call + number), tool, arguments) for number, (tool, arguments) in enumerate(named)]
        return ChatMessage.model_validate({"role": "assistant", "tool_calls": calls}), turn.think

    def certain(self, text: str, tools: Sequence[Schema]) -> tuple[str, str]:
        """Nothing: a reply is shown once its last tag is known."""
        return "", ""
