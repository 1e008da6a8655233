"""Handle requests: find the context that a request continues, generate, record the segment of its trajectory, and reply."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rl.engines.base import EngineFault, Generation, GenerationStop, Generator, Sampling, StreamingGenerator
from rl.renderers.base import ParseError, RolloutDialect, Schema
from rl.renderers.plain_text import PlainText
from rl.serving.openai_chat import usage_of
from rl.serving.protocol import ChatMessage, ChatReply, ChatRequest, CompletionRequest, ContextFull, Delta, Refused
from rl.serving.recorder import FIRST, Recorder, Segment
from warehouse.digests import digest


class Renderer(Protocol):
    """Renders a client's messages for one policy."""

    @property
    def dialect(self) -> RolloutDialect: ...

    def prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Schema]) -> tuple[int, ...]:
        """Token ids of a conversation up to where the policy writes. Raises `Refused`."""
        ...

    def extension(
        self,
        before: Sequence[ChatMessage],
        reply: ChatMessage,
        reply_ids: Sequence[int],
        added: Sequence[ChatMessage],
        tools: Sequence[Schema],
    ) -> tuple[int, ...]:
        """Token ids to append after the sampled `reply_ids`, for the messages `added`. Raises `Refused`."""
        ...

    def reply(self, reply_ids: Sequence[int], tools: Sequence[Schema], first_call: int) -> tuple[ChatMessage, str | None]:
        """The policy's message for the client, and its reasoning; calls are numbered from `first_call`."""
        ...

    def certain(self, text: str, tools: Sequence[Schema]) -> tuple[str, str]:
        """The reasoning and content that a reply beginning with `text` will have in any case."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Conversation and task from the request's headers."""

    conversation: str | None
    task_key: str | None


@dataclass(frozen=True, slots=True)
class _ChatHistory:
    """History of a chat segment: canonical messages, digest of its tools, and the last reply as returned."""

    messages: tuple[str, ...]
    tools: str
    reply: ChatMessage


@dataclass(frozen=True, slots=True)
class _CompletionHistory:
    """History of a completion segment, as ids and as text. Text is None if the policy ended its last reply (the end token has no text)."""

    ids: tuple[int, ...]
    text: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A chat request whose segment waits for the policy's reply; `id` names the reply, `rendered` as in `Segment`."""

    request: ChatRequest
    messages: tuple[str, ...]
    tools: str
    segment: Segment
    sampling: Sampling
    id: str
    rendered: int


class Endpoint:
    """Answers chat and completion requests, up to `context_tokens`.

    `no_chat` and `no_form` say why the policy takes no messages (without a `renderer`) or no JSON schema, and are empty otherwise.
    """

    def __init__(
        self,
        engines: Generator,
        recorder: Recorder,
        plain: PlainText,
        renderer: Renderer | None,
        no_chat: str,
        model: str,
        context_tokens: int,
        no_form: str = "",
    ) -> None:
        self.recorder, self.model = recorder, model
        self._engines, self.plain, self._renderer, self._context_tokens = engines, plain, renderer, context_tokens
        self._no_chat, self._no_form = no_chat, no_form
        self._vocabulary = plain.size

    def ask(self, request: ChatRequest, caller: Caller, clamped: bool = False) -> Asked:
        """Find or begin the segment that ends with the request's messages; `reply` or `stream` must follow.

        `clamped` shortens the reply to what the context leaves instead of refusing the request.

        Raises:
            Refused: the request cannot be served; nothing has changed.
        """
        self.check_model(request.model)
        self._check_choice(request)
        renderer, form = self._chat_renderer, request.response_format.form
        if form is not None and (self._no_form or request.offered_tools):
            reason = self._no_form or "a reply cannot be a call and satisfy a schema: send tool_choice none with the request for the answer"
            raise Refused(reason, param="response_format")
        messages, tools_digest = tuple(message.canonical for message in request.messages), digest(request.offered_tools)
        segment, limit, added = self._chat_segment(renderer, request, caller, messages, tools_digest, clamped)
        sampling = Sampling(request.temperature, limit, renderer.dialect.stop_token_ids, request.top_p, request.seed, form=form)
        rendered = 0 if segment.reason == FIRST and not segment.turns else self._reply_tokens(added)
        return Asked(request, messages, tools_digest, segment, sampling, f"{segment.id}/{len(segment.turns)}", rendered)

    async def chat(self, request: ChatRequest, caller: Caller) -> ChatReply:
        """Reply to a chat request. Raises `Refused`."""
        return await self.reply(self.ask(request, caller))

    async def reply(self, asked: Asked) -> ChatReply:
        """Generate the whole reply. Raises `Refused` if the engine fails."""
        generation, latency = await self._generate(asked.segment, asked.sampling)
        return self._record(asked, generation, latency, None)

    async def stream(self, asked: Asked) -> AsyncGenerator[Delta | ChatReply, None]:
        """Generate the reply, as its text becomes certain, and last as a whole. Raises `Refused` if the engine fails."""
        if not isinstance(self._engines, StreamingGenerator):
            raise TypeError(f"{type(self._engines).__name__} does not stream")
        shown = _Shown(self._chat_renderer, asked.request.offered_tools, self.plain)
        clock, generation = time.perf_counter(), None
        with self._in_flight(asked.segment):
            async with aclosing(self._engines.stream(asked.segment.id, asked.segment.ids, asked.sampling)) as parts:
                async for part in parts:
                    if isinstance(part, Generation):
                        generation = part
                        continue
                    for delta in () if asked.request.stop else shown.more(part):
                        yield delta
        if generation is None:
            raise TypeError("the stream ended without a generation")
        reply = self._record(asked, generation, time.perf_counter() - clock, shown)
        for delta in shown.rest(reply.thought or "", reply.message.text):
            yield delta
        yield reply

    @property
    def _chat_renderer(self) -> Renderer:
        if self._renderer is None:
            raise Refused(self._no_chat)
        return self._renderer

    def _record(self, asked: Asked, generation: Generation, latency: float, shown: _Shown | None) -> ChatReply:
        """Append the reply to its segment. After a stream its texts begin with what was `shown`."""
        renderer, segment, tools = self._chat_renderer, asked.segment, asked.request.offered_tools
        prompt_ids, generation = tuple(segment.ids), self._until(generation, asked.request.stop)
        message, thought = renderer.reply(generation.token_ids, tools, sum(len(each.calls) for each in asked.request.messages))
        for stop in asked.request.stop:
            message = message.model_copy(update={"content": message.text.partition(stop)[0]}) if stop in message.text else message
        if shown is not None and not message.text.startswith(shown.text):
            message = message.model_copy(update={"content": shown.text})
        turn = renderer.dialect.parse(generation.token_ids, tools)
        calls = [] if isinstance(turn, ParseError) else [(call.tool, call.arguments) for call in turn.calls]
        history = _ChatHistory((*asked.messages, message.canonical), asked.tools, message)
        segment.rendered += asked.rendered
        segment.record(generation, renderer.dialect.decode(generation.token_ids), calls, history, latency)
        tokens = self._tokens(generation) if asked.request.logprobs else ()
        return ChatReply(asked.id, self.model, message, thought, prompt_ids, generation, tuple(tokens))

    def _until(self, generation: Generation, stops: Sequence[str]) -> Generation:
        """The generation up to the token that completes one of `stops`; what was sampled after it is as if it never was."""
        ids, decode, text = generation.token_ids, self.plain.decoder(), ""
        for size, token in enumerate(ids if stops else (), start=1):
            text += decode([token])
            if any(stop in text for stop in stops):
                kept = replace(generation, token_ids=ids[:size], logprobs=generation.logprobs[:size], stop_reason=GenerationStop.STOP)
                return replace(kept, policy_versions=generation.policy_versions[:size])
        return generation

    def _chat_segment(
        self, renderer: Renderer, request: ChatRequest, caller: Caller, messages: tuple[str, ...], tools_digest: str, clamped: bool
    ) -> tuple[Segment, int, Sequence[ChatMessage]]:
        """The segment that ends with the request's messages, the token limit of the reply, and the messages that were rendered."""
        place = self.recorder.find(caller.conversation, lambda history: _covered_messages(history, messages, tools_digest))
        if place is None:
            prompt_ids = renderer.prompt(request.messages, request.offered_tools)
            limit = self._reply_limit(len(prompt_ids), request.max_reply_tokens, clamped)
            segment = self.recorder.begin(caller.conversation, caller.task_key, prompt_ids, request.seed or 0, "chat")
            return segment, limit, request.messages
        history: _ChatHistory = place.history
        number = len(history.messages) - 1
        before, added = request.messages[:number], request.messages[number + 1 :]
        observation_ids = renderer.extension(before, history.reply, place.reply_ids, added, request.offered_tools)
        limit = self._reply_limit(len(place.ids) + len(observation_ids), request.max_reply_tokens, clamped)
        segment = self.recorder.extend(place, observation_ids, renderer.dialect.decode(observation_ids), request.seed or 0)
        return segment, limit, added

    def _reply_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Tokens of the assistant's messages among `messages`, about as rendered."""
        replies = [message for message in messages if message.role == "assistant"]
        return sum(len(self.plain.ids(each.text + "".join(call.function.arguments for call in each.calls))) for each in replies)

    async def complete(self, request: CompletionRequest, caller: Caller) -> dict[str, Any]:
        """Answer `POST /v1/completions`, not streamed. A text prompt never produces control tokens. Raises `Refused`."""
        self.check_model(request.model)
        prompt = request.prompt if isinstance(request.prompt, str) else self._checked_ids(request.prompt)
        segment, limit = self._completion_segment(request, prompt, caller)
        prompt_ids = tuple(segment.ids)
        sampling = Sampling(request.temperature, limit, tuple(self.plain.end), request.top_p, request.seed)
        generation, latency = await self._generate(segment, sampling)
        ended = generation.token_ids[-1] in self.plain.end
        text = self.plain.decode(generation.token_ids[:-1] if ended else generation.token_ids)
        before = prompt if isinstance(prompt, str) else self.plain.decode(prompt)
        history = _CompletionHistory((*segment.ids, *generation.token_ids), None if ended else before + text)
        segment.record(generation, self.plain.decode(generation.token_ids), [], history, latency)
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": generation.stop_reason.value, "logprobs": None}
        if request.logprobs is not None:
            choice["logprobs"] = {"tokens": self._tokens(generation), "token_logprobs": list(generation.logprobs)}
        answer: dict[str, Any] = {
            "id": f"{segment.id}/{len(segment.turns) - 1}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.model,
            "choices": [choice],
            "usage": usage_of(len(prompt_ids), len(generation.token_ids)),
        }
        if request.return_token_ids:
            answer["prompt_token_ids"], choice["token_ids"] = list(prompt_ids), list(generation.token_ids)
        return answer

    def _completion_segment(self, request: CompletionRequest, prompt: str | tuple[int, ...], caller: Caller) -> tuple[Segment, int]:
        """The segment that ends with the prompt, and the token limit of its continuation."""
        place = self.recorder.find(caller.conversation, lambda history: _covered_prompt(history, prompt))
        if place is None:
            prompt_ids = self.plain.ids(prompt) if isinstance(prompt, str) else prompt
            limit = self._reply_limit(len(prompt_ids), request.max_tokens)
            return self.recorder.begin(caller.conversation, caller.task_key, prompt_ids, request.seed or 0, "completions"), limit
        history: _CompletionHistory = place.history
        added = self.plain.ids(prompt[len(history.text or "") :]) if isinstance(prompt, str) else prompt[len(history.ids) :]
        limit = self._reply_limit(len(place.ids) + len(added), request.max_tokens)
        return self.recorder.extend(place, added, self.plain.decode(added), request.seed or 0), limit

    async def _generate(self, segment: Segment, sampling: Sampling) -> tuple[Generation, float]:
        clock = time.perf_counter()
        with self._in_flight(segment):
            generation = await self._engines.generate(segment.id, segment.ids, sampling)
        return generation, time.perf_counter() - clock

    @contextmanager
    def _in_flight(self, segment: Segment) -> Iterator[None]:
        """Undo the request if the engine fails, which leaves the segment invalid, or if the client gives it up. Raises `Refused`."""
        try:
            yield
        except EngineFault as error:
            segment.fail(str(error))
            raise Refused(f"the engine failed: {error}", status=503) from error
        except BaseException:
            self.recorder.withdraw(segment)
            raise

    def check_model(self, model: str) -> None:
        """Raise `Refused` if the endpoint does not serve `model`."""
        if model != self.model:
            raise Refused(f"there is no model {model!r}; this endpoint serves {self.model!r}", status=404, param="model")

    def _check_choice(self, request: ChatRequest) -> None:
        if request.tool_choice == "required":
            raise Refused("tool_choice required is not supported: the policy cannot be forced to call a tool", param="tool_choice")

    def _checked_ids(self, prompt_ids: list[int]) -> tuple[int, ...]:
        """Check that all ids are in the vocabulary; others would crash the engine."""
        if not all(0 <= token < self._vocabulary for token in prompt_ids):
            raise Refused(f"prompt holds an id outside the policy's vocabulary of {self._vocabulary} tokens")
        return tuple(prompt_ids)

    def _reply_limit(self, prompt_tokens: int, wanted: int | None, clamped: bool = False) -> int:
        room = self._context_tokens - prompt_tokens
        if clamped and wanted is not None and 0 < room < wanted:
            return room
        if room < (wanted or 1):
            asked = f" and {wanted} of reply" if wanted else ""
            raise ContextFull(f"{prompt_tokens} tokens of prompt{asked} exceed the policy's context of {self._context_tokens}")
        return wanted or room

    def _tokens(self, generation: Generation) -> list[str]:
        return [self.plain.decode([token]) for token in generation.token_ids]


class _Shown:
    """What a client has been shown of a reply in progress."""

    def __init__(self, renderer: Renderer, tools: Sequence[Schema], plain: PlainText) -> None:
        self._renderer, self._tools, self._decode = renderer, tools, plain.decoder()
        self._read = ""
        self.thought = self.text = ""

    def more(self, ids: Sequence[int]) -> list[Delta]:
        """What becomes certain with these ids."""
        ends = self._renderer.dialect.stop_token_ids
        self._read += self._decode([token for token in ids if token not in ends])
        return self.rest(*self._renderer.certain(self._read, self._tools))

    def rest(self, thought: str, text: str) -> list[Delta]:
        """What these texts have in addition; nothing of a text that begins differently."""
        deltas = []
        if thought.startswith(self.thought) and thought != self.thought:
            deltas.append(Delta("thought", thought[len(self.thought) :]))
            self.thought = thought
        if text.startswith(self.text) and text != self.text:
            deltas.append(Delta("text", text[len(self.text) :]))
            self.text = text
        return deltas


def _covered_messages(history: Any, messages: tuple[str, ...], tools: str) -> int | None:
    """Number of the request's messages that a segment's history covers; None if the request does not continue it."""
    if not isinstance(history, _ChatHistory) or history.tools != tools or len(messages) <= len(history.messages):
        return None
    return len(history.messages) if messages[: len(history.messages)] == history.messages else None


def _covered_prompt(history: Any, prompt: str | tuple[int, ...]) -> int | None:
    """Length of the prompt that a segment's history covers; None if the prompt does not continue it."""
    if not isinstance(history, _CompletionHistory):
        return None
    past = history.text if isinstance(prompt, str) else history.ids
    return len(past) if past is not None and len(prompt) > len(past) and prompt[: len(past)] == past else None
