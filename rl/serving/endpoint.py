"""Handling of one request: find the context that it continues, generate, record, answer."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from rl.engines.base import EngineFault, Generation, Generator, Sampling
from rl.renderers.base import ParseError, Schema
from rl.renderers.plain_text import PlainText
from rl.serving.chat_renderer import ChatRenderer
from rl.serving.protocol import ChatMessage, ChatRequest, CompletionRequest, ContextFull, Refused, StreamOptions
from rl.serving.recorder import Recorder, Segment
from warehouse.digests import digest


@dataclass(frozen=True, slots=True)
class Caller:
    """Conversation and task from the request's headers."""

    conversation: str | None
    task_key: str | None


@dataclass(frozen=True, slots=True)
class _ChatHistory:
    """History of a chat segment: canonical messages, digest of its tools, the last reply as given."""

    messages: tuple[str, ...]
    tools: str
    reply: ChatMessage


@dataclass(frozen=True, slots=True)
class _CompletionHistory:
    """History of a completion segment, as ids and as text. No text if the policy ended its last reply: the end token has no text."""

    ids: tuple[int, ...]
    text: str | None


class Endpoint:
    """Answers both kinds of requests, up to `context_tokens`. Without `renderer` there is no chat, for the reason `no_chat`."""

    def __init__(
        self,
        engines: Generator,
        recorder: Recorder,
        plain: PlainText,
        renderer: ChatRenderer | None,
        no_chat: str,
        model: str,
        context_tokens: int,
    ) -> None:
        self.recorder, self.model = recorder, model
        self._engines, self._plain, self._renderer, self._context_tokens = engines, plain, renderer, context_tokens
        self._no_chat = no_chat
        self._vocabulary = plain.size

    async def chat(self, request: ChatRequest, caller: Caller) -> dict[str, Any]:
        """`POST /v1/chat/completions`, not streamed. Raises `Refused`."""
        self._check_model(request.model)
        if self._renderer is None:
            raise Refused(self._no_chat)
        messages, tools_digest = tuple(message.canonical for message in request.messages), digest(request.offered_tools)
        segment, limit = self._chat_segment(self._renderer, request, caller, messages, tools_digest)
        prompt_tokens = len(segment.ids)
        sampling = Sampling(request.temperature, limit, self._renderer.dialect.stop_token_ids, request.top_p, request.seed)
        generation, latency = await self._generate(segment, sampling)
        calls_before = sum(len(turn.calls) for turn in segment.turns)
        reply, thought = self._renderer.reply(generation.token_ids, request.offered_tools, calls_before)
        text, calls = self._renderer.dialect.decode(generation.token_ids), _calls(self._renderer, generation, request.offered_tools)
        segment.record(generation, text, calls, _ChatHistory((*messages, reply.canonical), tools_digest, reply), latency)
        choice = {
            "index": 0,
            "message": _message(reply, thought),
            "finish_reason": "tool_calls" if reply.calls else generation.stop_reason.value,
            "logprobs": {"content": self._chat_logprobs(generation), "refusal": None} if request.logprobs else None,
        }
        return self._answer("chat.completion", segment, prompt_tokens, generation, choice, request.return_token_ids)

    def _chat_segment(
        self, renderer: ChatRenderer, request: ChatRequest, caller: Caller, messages: tuple[str, ...], tools_digest: str
    ) -> tuple[Segment, int]:
        """The segment that ends with the request's messages, and the token limit of the reply."""
        segment = self.recorder.find(caller.conversation, lambda history: _covered_messages(history, messages, tools_digest))
        if segment is None:
            prompt_ids = renderer.prompt(request.messages, request.offered_tools)
            limit = self._reply_limit(len(prompt_ids), request.max_reply_tokens)
            return self.recorder.begin(caller.conversation, caller.task_key, prompt_ids, request.seed or 0, "chat"), limit
        history: _ChatHistory = segment.history
        place = len(history.messages) - 1
        before, added = request.messages[:place], request.messages[place + 1 :]
        observation_ids = renderer.extension(before, history.reply, segment.turns[-1].action_ids, added, request.offered_tools)
        limit = self._reply_limit(len(segment.ids) + len(observation_ids), request.max_reply_tokens)
        segment.append(observation_ids, renderer.dialect.decode(observation_ids))
        return segment, limit

    async def complete(self, request: CompletionRequest, caller: Caller) -> dict[str, Any]:
        """`POST /v1/completions`, not streamed. A text prompt is plain text, whatever control tokens it spells. Raises `Refused`."""
        self._check_model(request.model)
        prompt = request.prompt if isinstance(request.prompt, str) else self._checked_ids(request.prompt)
        segment, limit = self._completion_segment(request, prompt, caller)
        prompt_tokens = len(segment.ids)
        sampling = Sampling(request.temperature, limit, tuple(self._plain.end), request.top_p, request.seed)
        generation, latency = await self._generate(segment, sampling)
        ended = generation.token_ids[-1] in self._plain.end
        text = self._plain.decode(generation.token_ids[:-1] if ended else generation.token_ids)
        before = prompt if isinstance(prompt, str) else self._plain.decode(prompt)
        history = _CompletionHistory((*segment.ids, *generation.token_ids), None if ended else before + text)
        segment.record(generation, self._plain.decode(generation.token_ids), [], history, latency)
        choice = {"index": 0, "text": text, "finish_reason": generation.stop_reason.value, "logprobs": None}
        if request.logprobs is not None:
            choice["logprobs"] = {"tokens": self._tokens(generation), "token_logprobs": list(generation.logprobs)}
        return self._answer("text_completion", segment, prompt_tokens, generation, choice, request.return_token_ids)

    def _completion_segment(self, request: CompletionRequest, prompt: str | tuple[int, ...], caller: Caller) -> tuple[Segment, int]:
        """The segment that ends with the prompt, and the token limit of its continuation."""
        segment = self.recorder.find(caller.conversation, lambda history: _covered_prompt(history, prompt))
        if segment is None:
            prompt_ids = self._plain.ids(prompt) if isinstance(prompt, str) else prompt
            limit = self._reply_limit(len(prompt_ids), request.max_tokens)
            return self.recorder.begin(caller.conversation, caller.task_key, prompt_ids, request.seed or 0, "completions"), limit
        history: _CompletionHistory = segment.history
        added = self._plain.ids(prompt[len(history.text or "") :]) if isinstance(prompt, str) else prompt[len(history.ids) :]
        limit = self._reply_limit(len(segment.ids) + len(added), request.max_tokens)
        segment.append(added, self._plain.decode(added))
        return segment, limit

    async def _generate(self, segment: Segment, sampling: Sampling) -> tuple[Generation, float]:
        clock = time.perf_counter()
        try:
            generation = await self._engines.generate(segment.id, segment.ids, sampling)
        except EngineFault as error:
            segment.fail(str(error))
            raise Refused(f"the engine failed: {error}", status=503) from error
        except BaseException:
            segment.fail("the client went away")
            raise
        return generation, time.perf_counter() - clock

    def _check_model(self, model: str) -> None:
        if model != self.model:
            raise Refused(f"there is no model {model!r}; this endpoint serves {self.model!r}", status=404, param="model")

    def _checked_ids(self, prompt_ids: list[int]) -> tuple[int, ...]:
        """The ids; an id outside the vocabulary would kill the engine."""
        if not all(0 <= token < self._vocabulary for token in prompt_ids):
            raise Refused(f"prompt holds an id outside the policy's vocabulary of {self._vocabulary} tokens")
        return tuple(prompt_ids)

    def _reply_limit(self, prompt_tokens: int, wanted: int | None) -> int:
        room = self._context_tokens - prompt_tokens
        if room < (wanted or 1):
            asked = f" and {wanted} of reply" if wanted else ""
            raise ContextFull(f"{prompt_tokens} tokens of prompt{asked} exceed the policy's context of {self._context_tokens}")
        return wanted or room

    def _tokens(self, generation: Generation) -> list[str]:
        return [self._plain.decode([token]) for token in generation.token_ids]

    def _chat_logprobs(self, generation: Generation) -> list[dict[str, Any]]:
        pairs = zip(self._tokens(generation), generation.logprobs, strict=True)
        return [{"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []} for token, logprob in pairs]

    def _answer(
        self, kind: str, segment: Segment, prompt_tokens: int, generation: Generation, choice: dict[str, Any], show_ids: bool
    ) -> dict[str, Any]:
        sampled = len(generation.token_ids)
        answer: dict[str, Any] = {
            "id": f"{segment.id}/{len(segment.turns) - 1}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "choices": [choice],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": sampled, "total_tokens": prompt_tokens + sampled},
        }
        if show_ids:
            answer["prompt_token_ids"] = segment.ids[:prompt_tokens]
            choice["token_ids"] = list(generation.token_ids)
        return answer


async def server_sent_events(answer: dict[str, Any], options: StreamOptions | None) -> AsyncIterator[str]:
    """An answer as server-sent events: the message in one chunk, because a turn is recorded before it is sent."""
    chunk = {key: value for key, value in answer.items() if key != "usage"}
    (choice,) = answer["choices"]
    if answer["object"] == "chat.completion":
        chunk["object"] = "chat.completion.chunk"
        delta = dict(choice["message"])
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(delta["tool_calls"])]
        rest = {key: value for key, value in choice.items() if key not in ("message", "finish_reason")}
        yield _event({**chunk, "choices": [{**rest, "delta": delta, "finish_reason": None}]})
        yield _event({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    else:
        yield _event(chunk)
    if options is not None and options.include_usage:
        yield _event({**chunk, "choices": [], "usage": answer["usage"]})
    yield "data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _calls(renderer: ChatRenderer, generation: Generation, tools: Sequence[Schema]) -> list[tuple[str, str]]:
    """Calls of an action, including an answer; none if it does not parse."""
    turn = renderer.dialect.parse(generation.token_ids, tools)
    return [] if isinstance(turn, ParseError) else [(call.tool, call.arguments) for call in turn.calls]


def _message(reply: ChatMessage, thought: str | None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if thought is not None:
        message["reasoning_content"] = thought
    if reply.calls:
        message["tool_calls"] = [call.model_dump() for call in reply.calls]
    return message


def _covered_messages(history: Any, messages: tuple[str, ...], tools: str) -> int | None:
    """Number of the request's messages that a segment's history covers; None if it does not continue it."""
    if not isinstance(history, _ChatHistory) or history.tools != tools or len(messages) <= len(history.messages):
        return None
    return len(history.messages) if messages[: len(history.messages)] == history.messages else None


def _covered_prompt(history: Any, prompt: str | tuple[int, ...]) -> int | None:
    """Length of the prompt that a segment's history covers; None if it does not continue it."""
    if not isinstance(history, _CompletionHistory):
        return None
    past = history.text if isinstance(prompt, str) else history.ids
    return len(past) if past is not None and len(prompt) > len(past) and prompt[: len(past)] == past else None
