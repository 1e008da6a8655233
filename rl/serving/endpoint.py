"""What the endpoint does with a request: find the context it continues, have the engines continue it, record, answer."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from rl.dialect import ParseError
from rl.dialects.plain_text import PlainText
from rl.engine import EngineFault, Generation, Sampling
from rl.rollouts.agent_loop import Generator
from rl.serving.protocol import ChatMessage, ChatRequest, CompletionRequest, ContextFull, Refused, StreamOptions
from rl.serving.recorder import Recorder, Segment
from rl.serving.rendering import ChatRenderer
from warehouse.digests import digest


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the conversation and the task that the request's headers name."""

    conversation: str | None
    task_key: str | None


@dataclass(frozen=True, slots=True)
class _Said:
    """What a chat segment said so far: the meanings of its messages, its tools, its last reply as it was given."""

    meanings: tuple[str, ...]
    tools: str
    reply: ChatMessage


@dataclass(frozen=True, slots=True)
class _Written:
    """What a segment of completions said so far, in both forms in which a client may go on from it."""

    ids: tuple[int, ...]
    text: str


class Endpoint:
    """Answers requests of the two kinds. `longest` is the policy's context in tokens; without `renderer` there is no chat, for the reason
    `no_chat`."""

    def __init__(
        self,
        engines: Generator,
        recorder: Recorder,
        plain: PlainText,
        renderer: ChatRenderer | None,
        no_chat: str,
        model: str,
        longest: int,
    ) -> None:
        self.recorder, self.model = recorder, model
        self._engines, self._plain, self._renderer, self._longest = engines, plain, renderer, longest
        self._no_chat = no_chat
        self._vocabulary = plain.size

    async def chat(self, request: ChatRequest, caller: Caller) -> dict[str, Any]:
        """`POST /v1/chat/completions`: the answer without streaming.

        Raises:
            Refused: the request cannot be honoured.
        """
        self._check_model(request.model)
        if self._renderer is None:
            raise Refused(self._no_chat)
        meanings, shown = tuple(message.meaning for message in request.messages), digest(request.offered)
        segment, most = self._chat_segment(self._renderer, request, caller, meanings, shown)
        prompt_tokens = len(segment.ids)
        sampling = Sampling(request.temperature, most, self._renderer.dialect.stop_token_ids, request.top_p, request.seed)
        generation, latency = await self._generate(segment, sampling)
        calls_before = sum(len(turn.calls) for turn in segment.turns)
        reply, thought = self._renderer.reply(generation.token_ids, bool(request.offered), calls_before)
        text, calls = self._renderer.dialect.decode(generation.token_ids), _calls(self._renderer, generation)
        segment.record(generation, text, calls, _Said((*meanings, reply.meaning), shown, reply), latency)
        choice = {
            "index": 0,
            "message": _message(reply, thought),
            "finish_reason": "tool_calls" if reply.calls else generation.stop_reason.value,
            "logprobs": {"content": self._chat_logprobs(generation), "refusal": None} if request.logprobs else None,
        }
        return self._answer("chat.completion", segment, prompt_tokens, generation, choice, request.return_token_ids)

    def _chat_segment(
        self, renderer: ChatRenderer, request: ChatRequest, caller: Caller, meanings: tuple[str, ...], shown: str
    ) -> tuple[Segment, int]:
        """The segment that ends with the request's messages, and how many tokens the reply may have."""
        segment = self.recorder.find(caller.conversation, lambda said: _continued(said, meanings, shown))
        if segment is None:
            prompt_ids = renderer.prompt(request.messages, request.offered)
            most = self._room(len(prompt_ids), request.most)
            return self.recorder.begin(caller.conversation, caller.task_key, prompt_ids, request.seed or 0, "chat"), most
        said: _Said = segment.said
        place = len(said.meanings) - 1
        before, added = request.messages[:place], request.messages[place + 1 :]
        observation_ids = renderer.extension(before, said.reply, segment.turns[-1].action_ids, added, request.offered)
        most = self._room(len(segment.ids) + len(observation_ids), request.most)
        segment.append(observation_ids, renderer.dialect.decode(observation_ids))
        return segment, most

    async def complete(self, request: CompletionRequest, caller: Caller) -> dict[str, Any]:
        """`POST /v1/completions`: the answer without streaming. A prompt of text is text, whatever control tokens it spells.

        Raises:
            Refused: the request cannot be honoured.
        """
        self._check_model(request.model)
        prompt = request.prompt if isinstance(request.prompt, str) else self._known(request.prompt)
        segment, most = self._written_segment(request, prompt, caller)
        prompt_tokens = len(segment.ids)
        sampling = Sampling(request.temperature, most, tuple(self._plain.end), request.top_p, request.seed)
        generation, latency = await self._generate(segment, sampling)
        ended = generation.token_ids[-1] in self._plain.end
        text = self._plain.decode(generation.token_ids[:-1] if ended else generation.token_ids)
        before = prompt if isinstance(prompt, str) else self._plain.decode(prompt)
        written = _Written((*segment.ids, *generation.token_ids), before + text)
        segment.record(generation, self._plain.decode(generation.token_ids), [], written, latency)
        choice = {"index": 0, "text": text, "finish_reason": generation.stop_reason.value, "logprobs": None}
        if request.logprobs is not None:
            choice["logprobs"] = {"tokens": self._tokens(generation), "token_logprobs": list(generation.logprobs)}
        return self._answer("text_completion", segment, prompt_tokens, generation, choice, request.return_token_ids)

    def _written_segment(self, request: CompletionRequest, prompt: str | tuple[int, ...], caller: Caller) -> tuple[Segment, int]:
        """The segment that ends with the prompt, and how many tokens its continuation may have."""
        segment = self.recorder.find(caller.conversation, lambda said: _begins(said, prompt))
        if segment is None:
            prompt_ids = self._plain.ids(prompt) if isinstance(prompt, str) else prompt
            most = self._room(len(prompt_ids), request.max_tokens)
            return self.recorder.begin(caller.conversation, caller.task_key, prompt_ids, request.seed or 0, "completions"), most
        said: _Written = segment.said
        added = self._plain.ids(prompt[len(said.text) :]) if isinstance(prompt, str) else prompt[len(said.ids) :]
        most = self._room(len(segment.ids) + len(added), request.max_tokens)
        segment.append(added, self._plain.decode(added))
        return segment, most

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
            raise Refused(f"there is no model {model!r}; this endpoint serves {self.model!r}", status=404)

    def _known(self, prompt_ids: list[int]) -> tuple[int, ...]:
        """The ids; one that the policy does not have could end the engine."""
        if not all(0 <= token < self._vocabulary for token in prompt_ids):
            raise Refused(f"prompt holds an id that is none of the policy's {self._vocabulary} tokens")
        return tuple(prompt_ids)

    def _room(self, prompt_tokens: int, wanted: int | None) -> int:
        """Tokens of the reply at most."""
        room = self._longest - prompt_tokens
        if room < (wanted or 1):
            asked = f" and {wanted} of reply" if wanted else ""
            raise ContextFull(f"{prompt_tokens} tokens of prompt{asked} are more than the {self._longest} that the policy can take")
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


async def streamed(answer: dict[str, Any], options: StreamOptions | None) -> AsyncIterator[str]:
    """An answer as server-sent events: the message in one piece, for a turn is recorded whole before any of it is given away."""
    whole = {key: value for key, value in answer.items() if key != "usage"}
    (choice,) = answer["choices"]
    if answer["object"] == "chat.completion":
        whole["object"] = "chat.completion.chunk"
        delta = dict(choice["message"])
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(delta["tool_calls"])]
        rest = {key: value for key, value in choice.items() if key not in ("message", "finish_reason")}
        yield _event({**whole, "choices": [{**rest, "delta": delta, "finish_reason": None}]})
        yield _event({**whole, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    else:
        yield _event(whole)
    if options is not None and options.include_usage:
        yield _event({**whole, "choices": [], "usage": answer["usage"]})
    yield "data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _calls(renderer: ChatRenderer, generation: Generation) -> list[tuple[str, str]]:
    """The calls of an action, an answer included; none where it cannot be read."""
    turn = renderer.dialect.parse(generation.token_ids)
    return [] if isinstance(turn, ParseError) else [(call.tool, call.arguments) for call in turn.calls]


def _message(reply: ChatMessage, thought: str | None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if thought is not None:
        message["reasoning_content"] = thought
    if reply.calls:
        message["tool_calls"] = [call.model_dump() for call in reply.calls]
    return message


def _continued(said: Any, meanings: tuple[str, ...], tools: str) -> int | None:
    """How many messages of a chat request a segment has, or None where the request is no continuation of it."""
    if not isinstance(said, _Said) or said.tools != tools or len(meanings) <= len(said.meanings):
        return None
    return len(said.meanings) if meanings[: len(said.meanings)] == said.meanings else None


def _begins(said: Any, prompt: str | tuple[int, ...]) -> int | None:
    """How much of a prompt a segment has, or None where the prompt does not begin with it."""
    if not isinstance(said, _Written):
        return None
    if isinstance(prompt, str):
        return len(said.text) if prompt.startswith(said.text) else None
    return len(said.ids) if prompt[: len(said.ids)] == said.ids else None
