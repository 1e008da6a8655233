"""OpenAI's Responses API: requests as chat requests, replies as responses and their streams.

Without a store: `previous_response_id`, `conversation` and `store = true` are refused, and a client sends all items each time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveInt, Tag

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


class _Message(Lenient):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextContent]


class _Call(Lenient):
    call_id: str
    name: str
    arguments: str


class _Result(Lenient):
    call_id: str
    output: str | list[TextContent]


class _Reasoning(Lenient):
    """Dropped: the segment has the tokens of past reasoning."""


_Item = Annotated[
    Annotated[_Message, Tag("message")]
    | Annotated[_Call, Tag("function_call")]
    | Annotated[_Result, Tag("function_call_output")]
    | Annotated[_Reasoning, Tag("reasoning")],
    Discriminator(lambda item: item.get("type", "message") if isinstance(item, dict) else None),
]


class _Function(Lenient):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ResponsesRequest(ApiRequest):
    """`POST /v1/responses`."""

    input: Annotated[str | list[_Item], Field(min_length=1)]
    instructions: str = ""
    max_output_tokens: PositiveInt | None = None
    tools: list[_Function] = Field(default_factory=list)
    tool_choice: Literal["auto", "none"] = "auto"
    text: FormatSettings = FormatSettings()
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    top_logprobs: Literal[0] = 0
    stream_options: Any = None

    def chat(self) -> ChatRequest:
        """The request as a chat request."""
        messages = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        return ChatRequest(
            model=self.model,
            messages=messages + ([ChatMessage(role="user", content=self.input)] if isinstance(self.input, str) else _messages(self.input)),
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=[function_tool(tool.name, tool.description, tool.parameters) for tool in self.tools],
            tool_choice=self.tool_choice,
            response_format=self.text.response_format,
            user=self.user,
        )


def _messages(items: list[_Item]) -> list[ChatMessage]:
    """Items as messages; an assistant's text and calls in a row are one message."""
    messages: list[ChatMessage] = []
    for item in items:
        if isinstance(item, _Result):
            messages.append(ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id))
        elif isinstance(item, _Message):
            messages.append(ChatMessage(role=item.role, content=item.content))
        elif isinstance(item, _Call):
            last = messages.pop() if messages and messages[-1].role == "assistant" else ChatMessage(role="assistant")
            call = ToolCall(id=item.call_id, function=Function(name=item.name, arguments=item.arguments))
            messages.append(last.model_copy(update={"tool_calls": [*last.calls, call]}))
    return messages


def answer(reply: ChatReply, request: ResponsesRequest) -> dict[str, Any]:
    """The body of a `response`."""
    items = [_reasoning_item(reply.id, reply.thought)] if reply.thought else []
    items += [_message_item(reply.id, reply.message.text)] if reply.message.text else []
    return _response(reply, request, items + list(_call_items(reply)))


async def events(parts: AsyncGenerator[Delta | ChatReply, None], request: ResponsesRequest, id: str) -> AsyncGenerator[str, None]:
    """The stream of a response: each item is added, grows by deltas, and is done; calls come as a whole."""
    writer = _Writer(id)
    head = {**_head(id, request, time.time()), "status": "in_progress", "output": [], "usage": None}
    began = False
    async for part in parts:
        if not began:
            began = True
            yield writer.event("response.created", response=head)
            yield writer.event("response.in_progress", response=head)
        for written in writer.delta(part) if isinstance(part, Delta) else writer.end(part):
            yield written
        if isinstance(part, ChatReply):
            response = _response(part, request, writer.done, head["created_at"])
            yield writer.event(f"response.{response['status']}", response=response)


class _Writer:
    """Events of one response; `done` has the finished items."""

    def __init__(self, id: str) -> None:
        self._id, self._numbers = id, count()
        self._kind = self._text = ""
        self.done: list[dict[str, Any]] = []

    def event(self, kind: str, /, **data: Any) -> str:
        return event({"type": kind, "sequence_number": next(self._numbers), **data}, kind)

    def delta(self, delta: Delta) -> Iterator[str]:
        """A delta, after the beginning of its item if it has none."""
        if delta.kind != self._kind:
            yield from self._close()
            self._kind, self._text = delta.kind, ""
            item = self._item("in_progress")
            yield self.event("response.output_item.added", output_index=len(self.done), item={**item, "content": []})
            yield self.event("response.content_part.added", **self._place(item), part=item["content"][0])
        item = self._item("in_progress")
        self._text += delta.text
        yield self.event(f"response.{item['content'][0]['type']}.delta", **self._place(item), delta=delta.text, **self._logprobs)

    def end(self, reply: ChatReply) -> Iterator[str]:
        """The end of the open item, and all calls."""
        yield from self._close()
        for call in _call_items(reply):
            place, index = {"item_id": call["id"], "output_index": len(self.done)}, len(self.done)
            begun = {**call, "arguments": "", "status": "in_progress"}
            yield self.event("response.output_item.added", output_index=index, item=begun)
            yield self.event("response.function_call_arguments.delta", **place, delta=call["arguments"])
            yield self.event("response.function_call_arguments.done", **place, name=call["name"], arguments=call["arguments"])
            yield self.event("response.output_item.done", output_index=index, item=call)
            self.done.append(call)

    def _close(self) -> Iterator[str]:
        if self._kind:
            item = self._item("completed")
            part = item["content"][0]
            yield self.event(f"response.{part['type']}.done", **self._place(item), text=self._text, **self._logprobs)
            yield self.event("response.content_part.done", **self._place(item), part=part)
            yield self.event("response.output_item.done", output_index=len(self.done), item=item)
            self.done.append(item)

    def _item(self, status: str) -> dict[str, Any]:
        return (_reasoning_item if self._kind == "thought" else _message_item)(self._id, self._text, status)

    def _place(self, item: dict[str, Any]) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": len(self.done), "content_index": 0}

    @property
    def _logprobs(self) -> dict[str, list[Any]]:
        """A required field of events about text."""
        return {} if self._kind == "thought" else {"logprobs": []}


def _response(reply: ChatReply, request: ResponsesRequest, items: list[dict[str, Any]], created: float | None = None) -> dict[str, Any]:
    cut = reply.finish == "length"
    sampled = len(reply.generation.token_ids)
    return {
        **_head(reply.id, request, created or time.time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items,
        "usage": {
            "input_tokens": len(reply.prompt_ids),
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": len(reply.prompt_ids) + sampled,
        },
    }


def _head(id: str, request: ResponsesRequest, created: float) -> dict[str, Any]:
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": int(created),
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "metadata": {},
        "model": request.model,
        "parallel_tool_calls": True,
        "temperature": request.temperature,
        "tool_choice": request.tool_choice,
        "tools": [tool.model_dump() for tool in request.tools],
        "top_p": request.top_p,
    }


def _reasoning_item(id: str, text: str, status: str = "completed") -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": f"rs_{id}", "summary": [], "content": content, "status": status}


def _message_item(id: str, text: str, status: str = "completed") -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": f"msg_{id}", "role": "assistant", "status": status, "content": content}


def _call_items(reply: ChatReply) -> Iterator[dict[str, Any]]:
    for call in reply.message.calls:
        item = {"type": "function_call", "id": f"fc_{reply.id}_{call.id}", "call_id": call.id, "status": "completed"}
        yield {**item, "name": call.function.name, "arguments": call.function.arguments}
