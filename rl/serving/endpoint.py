"""Handle requests: find the context that a request continues, generate, record the segment of its trajectory, and answer."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from rl.engines.base import EngineFault, Generation, Generator, Sampling
from rl.renderers.base import ParseError, Schema
from rl.renderers.plain_text import PlainText
from rl.serving.chat_renderer import ChatRenderer
from rl.serving.protocol import ChatMessage, ChatRequest, CompletionRequest, ContextFull, Refused, StreamOptions
from warehouse.digests import digest
from warehouse.records import ANSWER, Call, Outcome, StopReason, Trajectory, Turn


@dataclass(slots=True, eq=False)
class Segment:
    """An append-only context. `history` is what the client sent and received, in the client's form, to recognize continuations."""

    id: str
    conversation: str
    task_key: str
    reason: str
    prompt_ids: tuple[int, ...]
    seed: int
    kind: str
    history: Any = None
    busy: bool = True
    ids: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    error: str | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0

    def append(self, observation_ids: Sequence[int], text: str) -> None:
        self.turns[-1] = replace(self.turns[-1], observation_ids=tuple(observation_ids), observation=text)
        self.ids.extend(observation_ids)
        self.busy = True

    def record(self, generation: Generation, text: str, calls: Sequence[tuple[str, str]], history: Any, latency: float) -> None:
        """Append an action; `calls` are its tools and arguments, including an answer."""
        versions = generation.policy_versions
        first = calls[0] if calls else (None, None)
        self.ids.extend(generation.token_ids)
        self.turns.append(
            Turn(
                index=len(self.turns),
                action_ids=generation.token_ids,
                action_logprobs=generation.logprobs,
                action=text,
                tool=first[0],
                arguments=first[1],
                observation_ids=(),
                observation="",
                reward=None,
                tool_outcome=None,
                latency=latency,
                policy_version=generation.policy_version,
                policy_versions=versions if len(set(versions)) > 1 else (),
                calls=tuple(Call(tool, arguments, None) for tool, arguments in calls),
            )
        )
        self.history, self.busy = history, False
        self.seconds = (datetime.now(UTC) - self.started).total_seconds()

    def fail(self, error: str) -> None:
        """Mark the trajectory as invalid after an engine failure; it cannot be extended."""
        self.error, self.history, self.busy = error, None, False


class Recorder:
    """Open segments of all conversations; `policy` and `stage` are recorded in their trajectories."""

    def __init__(self, policy: str, stage: str, run: str) -> None:
        self._policy, self._stage, self._run = policy, stage, run
        self._segments: dict[str, list[Segment]] = {}
        self._count = 0

    def find(self, conversation: str | None, extends: Callable[[Any], int | None]) -> Segment | None:
        """The segment with the longest history that a request extends, in one conversation or in all.

        `extends` returns how much of the request a segment's history covers, or None.
        """
        names = self._segments if conversation is None else [conversation]
        segments = [segment for name in names for segment in self._segments.get(name, ()) if not segment.busy]
        found = [(length, one) for one in segments if one.history is not None and (length := extends(one.history)) is not None]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def begin(self, conversation: str | None, task_key: str | None, prompt_ids: Sequence[int], seed: int, kind: str) -> Segment:
        """Begin a segment, recording why the request extends no other."""
        if conversation is None:
            conversation = f"{self._run}-{self._count:06d}"
            self._count += 1
        others = self._segments.setdefault(conversation, [])
        taken = {segment.id for segments in self._segments.values() for segment in segments}
        names = (f"{conversation}.{number}" if number else conversation for number in count(len(others)))
        name = next(name for name in names if name not in taken)  # a client may name a conversation like another's segment
        reason = _segment_reason(others)
        segment = Segment(name, conversation, task_key or conversation, reason, tuple(prompt_ids), seed, kind, ids=list(prompt_ids))
        others.append(segment)
        return segment

    def turns(self, conversation: str) -> list[Turn]:
        """Turns of a conversation's last segment."""
        segments = self._segments.get(conversation)
        return segments[-1].turns if segments else []

    def take(self, conversation: str | None = None) -> list[Trajectory]:
        """Remove and return the trajectories of one conversation, or of all; conversations with a request in flight stay."""
        names = list(self._segments) if conversation is None else [conversation]
        ready = [name for name in names if not any(segment.busy for segment in self._segments.get(name, ()))]
        return [self._trajectory(segment) for name in ready for segment in self._segments.pop(name, ())]

    def _trajectory(self, segment: Segment) -> Trajectory:
        return Trajectory(
            id=segment.id,
            task_key=segment.task_key,
            policy=self._policy,
            stage=self._stage,
            horizon=len(segment.turns),
            prompt_ids=segment.prompt_ids,
            turns=tuple(segment.turns),
            stop_reason=_stop_reason(segment),
            outcome=Outcome.INVALID if segment.error is not None else None,
            reward=None,
            seed=segment.seed,
            started=segment.started,
            seconds=segment.seconds,
            error=segment.error,
            provenance={"endpoint": segment.kind, "conversation": segment.conversation, "segment": segment.reason},
        )


def _stop_reason(segment: Segment) -> StopReason:
    if segment.error is not None:
        return StopReason.FAULT
    return StopReason.ANSWERED if segment.turns and segment.turns[-1].tool == ANSWER else StopReason.LEFT


def _segment_reason(others: Sequence[Segment]) -> str:
    if not others:
        return "first"
    return "at_once" if any(segment.busy for segment in others) else "does_not_extend"


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


class Endpoint:
    """Answers chat and completion requests, up to `context_tokens`. Without `renderer` chat is refused with the reason `no_chat`."""

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
        """Answer `POST /v1/chat/completions`, not streamed. Raises `Refused`."""
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
        """Answer `POST /v1/completions`, not streamed. A text prompt never produces control tokens. Raises `Refused`."""
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
            segment.fail("the client disconnected")
            raise
        return generation, time.perf_counter() - clock

    def _check_model(self, model: str) -> None:
        if model != self.model:
            raise Refused(f"there is no model {model!r}; this endpoint serves {self.model!r}", status=404, param="model")

    def _checked_ids(self, prompt_ids: list[int]) -> tuple[int, ...]:
        """Check that all ids are in the vocabulary; others would crash the engine."""
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
    """An answer as server-sent events, with the message in one chunk, because a turn is recorded before it is sent."""
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
