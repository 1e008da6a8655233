"""Replies as OpenAI chat completions, and as their streams."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from rl.serving.events import event
from rl.serving.protocol import ChatReply, ChatRequest, Delta


def usage_of(prompt_tokens: int, sampled: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "completion_tokens": sampled, "total_tokens": prompt_tokens + sampled}


def answer(reply: ChatReply, request: ChatRequest) -> dict[str, Any]:
    """The body of a `chat.completion`."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.message.content}
    if reply.thought:
        message["reasoning_content"] = reply.thought
    if reply.message.calls:
        message["tool_calls"] = [call.model_dump() for call in reply.message.calls]
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": _logprobs(reply, request)}
    body = {"object": "chat.completion", **_head(reply.id, reply.model), "choices": [choice], "usage": _usage(reply)}
    if request.return_token_ids:
        body["prompt_token_ids"], choice["token_ids"] = list(reply.prompt_ids), list(reply.generation.token_ids)
    return body


async def events(parts: AsyncGenerator[Delta | ChatReply, None], request: ChatRequest, id: str) -> AsyncGenerator[str, None]:
    """The stream of `chat.completion.chunk`: text as it comes, then calls, each as a whole."""
    head = {"object": "chat.completion.chunk", **_head(id, request.model)}
    role: dict[str, Any] = {"role": "assistant"}
    async for part in parts:
        if isinstance(part, Delta):
            yield event(_chunk(head, role | {"content" if part.kind == "text" else "reasoning_content": part.text}))
            role = {}
            continue
        calls = [{"index": number, **call.model_dump()} for number, call in enumerate(part.message.calls)]
        ids = {"token_ids": list(part.generation.token_ids)} if request.return_token_ids else {}
        if calls or role:
            yield event(_chunk(head, role | ({"tool_calls": calls} if calls else {"content": ""})))
        yield event(_chunk(head, {}, finish_reason=part.finish, logprobs=_logprobs(part, request), **ids))
        if request.stream_options.include_usage:
            yield event({**head, "choices": [], "usage": _usage(part)})
    yield "data: [DONE]\n\n"


def _head(id: str, model: str) -> dict[str, Any]:
    return {"id": id, "created": int(time.time()), "model": model}


def _chunk(head: dict[str, Any], delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None, **choice}]}


def _usage(reply: ChatReply) -> dict[str, int]:
    return usage_of(len(reply.prompt_ids), len(reply.generation.token_ids))


def _logprobs(reply: ChatReply, request: ChatRequest) -> dict[str, Any] | None:
    if not request.logprobs:
        return None
    pairs = zip(reply.tokens, reply.generation.logprobs, strict=True)
    tokens = [{"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []} for token, logprob in pairs]
    return {"content": tokens, "refusal": None}
