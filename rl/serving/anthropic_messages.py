"""Anthropic's Messages API: requests as chat requests, replies as messages and their streams."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from rl.serving.events import event
from rl.serving.protocol import (
    ApiRequest,
    ChatMessage,
    ChatReply,
    ChatRequest,
    Delta,
    FormatSettings,
    Function,
    Lenient,
    TextContent,
    ToolCall,
    function_tool,
)

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class _Thinking(Lenient):
    """Dropped: the segment has the tokens of past reasoning."""

    type: Literal["thinking", "redacted_thinking"]


class _ToolUse(Lenient):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class _ToolResult(Lenient):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextContent] = ""


class _Message(Lenient):
    role: Literal["system", "user", "assistant"]
    content: str | list[Annotated[TextContent | _Thinking | _ToolUse | _ToolResult, Field(discriminator="type")]]


class _Tool(Lenient):
    type: Literal["custom", None] = None
    name: str
    description: str = ""
    input_schema: dict[str, Any]


class _ToolChoice(Lenient):
    type: Literal["auto", "none"] = "auto"


class MessagesRequest(ApiRequest):
    """`POST /v1/messages`."""

    max_tokens: PositiveInt
    messages: list[_Message] = Field(min_length=1)
    system: str | list[TextContent] = ""
    tools: list[_Tool] = Field(default_factory=list)
    tool_choice: _ToolChoice = _ToolChoice()
    output_config: FormatSettings = FormatSettings()
    stop_sequences: list[str] = Field(default_factory=list, max_length=0)

    @model_validator(mode="after")
    def _check_last(self) -> MessagesRequest:
        if self.messages[-1].role == "assistant":
            raise ValueError("the last message must be the user's; continuing an assistant's message is not supported")
        return self

    def chat(self) -> ChatRequest:
        """The request as a chat request."""
        messages = [ChatMessage(role="system", content=self.system)] if self.system else []
        for message in self.messages:
            messages += _chat_messages(message)
        return ChatRequest(
            model=self.model,
            messages=messages,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=[function_tool(tool.name, tool.description, tool.input_schema) for tool in self.tools],
            tool_choice=self.tool_choice.type,
            response_format=self.output_config.response_format,
        )


def _chat_messages(message: _Message) -> list[ChatMessage]:
    """A message as chat messages: results of tools are messages of their own."""
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    messages: list[ChatMessage] = []
    texts: list[TextContent] = []
    calls: list[ToolCall] = []
    for block in message.content:
        if isinstance(block, _ToolResult):
            messages.append(ChatMessage(role="tool", content=block.content, tool_call_id=block.tool_use_id))
        elif isinstance(block, _ToolUse):
            arguments = json.dumps(block.input, ensure_ascii=False)
            calls.append(ToolCall(id=block.id, function=Function(name=block.name, arguments=arguments)))
        elif isinstance(block, TextContent):
            texts.append(block)
    if texts or calls or not messages:
        messages.append(ChatMessage(role=message.role, content=texts, tool_calls=calls or None))
    return messages


def answer(reply: ChatReply, request: MessagesRequest) -> dict[str, Any]:
    """The body of a `message`."""
    blocks: list[dict[str, Any]] = [{**_empty("thought"), "thinking": reply.thought}] if reply.thought else []
    blocks += [{"type": "text", "text": reply.message.text}] if reply.message.text else []
    blocks += [{**_use(call), "input": json.loads(call["arguments"])} for call in _calls(reply)]
    return {**_head(reply.id, request), "content": blocks, "stop_reason": _STOPS[reply.finish], "usage": _usage(reply)}


async def events(parts: AsyncGenerator[Delta | ChatReply, None], request: MessagesRequest, id: str) -> AsyncGenerator[str, None]:
    """The stream of a message: each block starts, grows by deltas, and stops; the input of a tool comes as a whole."""
    number, kind, began = -1, "", False
    async for part in parts:
        if not began:
            began = True
            yield _event("message_start", message={**_head(id, request), "content": [], "usage": {"input_tokens": 0, "output_tokens": 0}})
        if isinstance(part, Delta):
            if part.kind != kind:
                if kind:
                    yield _event("content_block_stop", index=number)
                number, kind = number + 1, part.kind
                yield _event("content_block_start", index=number, content_block=_empty(kind))
            delta = {"type": "thinking_delta", "thinking": part.text} if kind == "thought" else {"type": "text_delta", "text": part.text}
            yield _event("content_block_delta", index=number, delta=delta)
            continue
        if kind:
            yield _event("content_block_stop", index=number)
        for call in _calls(part):
            number += 1
            yield _event("content_block_start", index=number, content_block={**_use(call), "input": {}})
            yield _event("content_block_delta", index=number, delta={"type": "input_json_delta", "partial_json": call["arguments"]})
            yield _event("content_block_stop", index=number)
        yield _event("message_delta", delta={"stop_reason": _STOPS[part.finish], "stop_sequence": None}, usage=_usage(part))
        yield _event("message_stop")


def _event(name: str, **data: Any) -> str:
    return event({"type": name, **data}, name)


def _head(id: str, request: MessagesRequest) -> dict[str, Any]:
    return {"id": f"msg_{id}", "type": "message", "role": "assistant", "model": request.model, "stop_reason": None, "stop_sequence": None}


def _usage(reply: ChatReply) -> dict[str, int]:
    return {"input_tokens": len(reply.prompt_ids), "output_tokens": len(reply.generation.token_ids)}


def _empty(kind: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "", "signature": ""} if kind == "thought" else {"type": "text", "text": ""}


def _calls(reply: ChatReply) -> list[dict[str, str]]:
    return [{"id": call.id, "name": call.function.name, "arguments": call.function.arguments} for call in reply.message.calls]


def _use(call: dict[str, str]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call["id"], "name": call["name"]}
