"""The agent loop: runs one trajectory from question to end. Also defines rollout requests and the protocols of environments and loops.

Token ids are only appended: sampled ones, then the dialect's rendering of observations; nothing is decoded and re-encoded. Trajectories run
concurrently in asyncio, so a slow tool delays only its own trajectory.

    act -> ended by a call (an answer, or the environment is done)    -> ANSWERED
        -> last turn of the horizon                                   -> MAX_TURNS
        -> limit of all actions, or of all observations               -> MAX_TOTAL_ACTION_TOKENS, MAX_TOTAL_OBSERVATION_TOKENS
        -> the observation, or another action, does not fit           -> MAX_CONTEXT_TOKENS, or a new context without older observations
        -> soon no summary would fit, and summaries are wanted        -> ask for one: the next action, which begins a new context
        -> append the observation and act again
    the policy writes an image placeholder                            -> PLACEHOLDER
    out of time                                                       -> MAX_SECONDS
    an engine or environment fails, or the prompt leaves no room      -> FAULT: the trajectory is invalid
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from rl.content import ImageFault, PlacedImage, collapse_images
from rl.engines.base import EngineFault, Generation, GenerationStop, Generator, Sampling
from rl.envs.base import EnvironmentFault, FaultKind, ToolOutcome
from rl.renderers.base import (
    Action,
    ActionTurn,
    ContentRefused,
    Dialect,
    ParseError,
    Reply,
    Result,
    RolloutDialect,
    Schema,
    TakesImages,
    Truncation,
    holds_image,
)
from rl.rollouts.calls import EnvironmentHandle, TurnResult, run_calls
from rl.rollouts.config import Limits
from rl.rollouts.context import NOTE, REQUEST, SUMMARY, Past, shortened, summarized
from rl.rollouts.replay import Replay
from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.records import Call, Outcome, StopReason, Task, Trajectory, Turn
from warehouse.settings import Section, first_error

KEY = "rollout"
"""Key of `RolloutChoice` in a task's provenance."""
_MARKUP = 128
"""Tokens that the request for a summary and the dialect's markup take, at most."""


class RolloutChoice(Section):
    """What a task chooses in its provenance. None leaves loop and dialect to the configuration and offers all tools of the environment."""

    loop: str | None = None
    dialect: str | None = None
    tools: tuple[str, ...] | None = None
    """Tools that the policy sees and may call; answering is always possible."""


def choice_of(task: Task) -> RolloutChoice:
    """The choice of `task`. Raises RequestError if its provenance is malformed."""
    try:
        return RolloutChoice.model_validate(task.provenance.get(KEY, {}))
    except ValidationError as error:
        raise RequestError(f"the provenance of task {task.key!r} is invalid at {KEY}.{first_error(error)}.") from error


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """A requested trajectory.

    Attributes:
        horizon: maximum turns.
        temperature: sampling temperature; None: the configured one.
        older_share: probability that an action is sampled by an older policy.
        replay: turns to begin with, if it continues a stored trajectory.
    """

    trajectory_id: str
    task: Task
    policy: str
    horizon: int
    seed: int
    temperature: float | None = None
    older_share: float = 0.0
    stage: str = "rl"
    wheel_turn: int = 1
    step: int | None = None
    suite: str | None = None
    sample: int = 0
    replay: Replay | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def trajectory(
        self,
        prompt_ids: tuple[int, ...],
        turns: tuple[Turn, ...],
        stop: StopReason,
        started: datetime | None,
        seconds: float | None,
        error: str | None,
    ) -> Trajectory:
        """Build the ungraded record; a fault makes it invalid."""
        return Trajectory(
            id=self.trajectory_id,
            task_key=self.task.key,
            policy=self.policy,
            stage=self.stage,
            horizon=self.horizon,
            prompt_ids=prompt_ids,
            turns=turns,
            stop_reason=stop,
            outcome=Outcome.INVALID if stop is StopReason.FAULT else None,
            reward=None,
            seed=self.seed,
            started=started,
            seconds=seconds,
            wheel_turn=self.wheel_turn,
            step=self.step,
            suite=self.suite,
            sample=self.sample,
            error=error,
            provenance=dict(self.provenance),
        )


class Loop(Protocol):
    """Runs trajectories."""

    async def run(self, request: RolloutRequest, environment: EnvironmentHandle) -> Trajectory: ...


LoopFactory = Callable[[Generator, Dialect, Limits], Loop]


T = TypeVar("T")


class _OutOfTime(Exception): ...


@dataclass(slots=True)
class _Progress:
    """State of one trajectory; `deadline` is on the event loop's clock."""

    request: RolloutRequest
    environment: EnvironmentHandle
    tools: tuple[str, ...] | None
    deadline: float | None
    schemas: Sequence[Schema] = ()
    """Schemas of the offered tools."""
    prompt_ids: tuple[int, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    past: list[Past] = field(default_factory=list)
    """Turns that the next context may hold: all since the last summary, and those that it kept."""
    first_text: str = ""
    """What the environment showed before the first action."""
    opening: tuple[int, ...] = ()
    """The prompt of the present context: the first one, or one with a summary."""
    owes_summary: bool = False
    """The next action is a summary, which the last observation asked for."""
    summarized: bool = False
    """The last action was a summary."""
    context: list[int] = field(default_factory=list)
    images: list[PlacedImage] = field(default_factory=list)
    action_tokens: int = 0
    observation_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """Runs trajectories on an engine, in a dialect, within limits; stateless."""

    engine: Generator
    dialect: RolloutDialect
    limits: Limits

    async def run(self, request: RolloutRequest, environment: EnvironmentHandle) -> Trajectory:
        """Run one trajectory. Faults make it invalid; other exceptions are bugs and propagate."""
        started, clock = datetime.now(UTC), time.perf_counter()
        progress = _Progress(request, environment, choice_of(request.task).tools, self._deadline())
        try:
            stop = await self._run(progress)
        except _OutOfTime:
            stop = StopReason.MAX_SECONDS
        except (EngineFault, EnvironmentFault) as fault:
            stop, progress.error = StopReason.FAULT, str(fault)
        seconds = time.perf_counter() - clock
        return request.trajectory(progress.prompt_ids, tuple(progress.turns), stop, started, seconds, progress.error)

    async def _run(self, progress: _Progress) -> StopReason:
        request, task = progress.request, progress.request.task
        seed = request.seed if request.replay is None else request.replay.seed
        first = await _in_time(progress, progress.environment.reset(task, seed))
        tools = _offered(first.tools, progress.tools)
        if tools is None:
            there = ", ".join(tool["function"]["name"] for tool in first.tools)
            progress.error = (
                f"the task may call {', '.join(progress.tools or ())}, but its environment {task.environment!r} has only {there}"
            )
            return StopReason.FAULT
        progress.schemas, progress.first_text = tools, first.text
        progress.prompt_ids = progress.opening = self.dialect.prompt_ids(task.question, first.text, tools, self._cut)
        progress.context = list(progress.prompt_ids)
        if self._room(progress) <= 0:
            limit = self.limits.max_context_tokens
            progress.error = f"context: a prompt of {len(progress.prompt_ids)} tokens leaves no room in max_context_tokens = {limit}"
            return StopReason.FAULT
        stop = None
        while stop is None:
            stop = await (self._summarize(progress) if progress.owes_summary else self._take_turn(progress))
        return stop

    async def _take_turn(self, progress: _Progress) -> StopReason | None:
        """Append one action and its observation; return the stop reason, or None to continue."""
        clock, replay = time.perf_counter(), progress.request.replay
        context_ids = self._begun_anew(progress)
        if context_ids is None:
            return StopReason.MAX_CONTEXT_TOKENS
        progress.context = list(context_ids) or progress.context
        generation = None if replay is None else replay.generation(len(progress.turns), self.dialect, progress.schemas)
        if generation is None:
            generation = await self._sample(progress, self.limits.max_action_tokens)
        progress.context.extend(generation.token_ids)
        progress.action_tokens += len(generation.token_ids)
        action = self.dialect.parse(generation.token_ids, progress.schemas)
        result = await run_calls(action, progress.environment, progress.tools, progress.deadline)
        stop, reply = await self._after(progress, generation, result)
        if replay is not None:
            replay.check(len(progress.turns), result.calls, stop)
        if stop is None and self.limits.keep_observations is not None:
            reply = self._remember(progress, generation, result, reply)
        progress.images.extend(replace(placed, start=placed.start + len(progress.context)) for placed in reply.images)
        progress.context.extend(reply.ids)
        progress.observation_tokens += len(reply.ids)
        latency = time.perf_counter() - clock
        progress.turns.append(_turn(len(progress.turns), generation, action, result, reply, self.dialect, latency, context_ids))
        return stop

    def _remember(self, progress: _Progress, generation: Generation, result: TurnResult, reply: Reply) -> Reply:
        """Keep the turn for the next context. Return its observation, which asks for a summary if it is time for one."""
        note = self.dialect.reply_ids(generation.token_ids, [Result(NOTE)] * len(result.results), self._cut)
        progress.past.append(Past(generation.token_ids, reply.ids, note))
        if not self._is_nearly_full(progress, reply):
            return reply
        asked = self.dialect.reply_ids(generation.token_ids, [*result.results, Result(REQUEST)], self._cut)
        size = len(progress.context) + len(asked) + (self.limits.summary_tokens or 0)
        progress.owes_summary = size <= self.limits.max_context_tokens
        return Reply(asked) if progress.owes_summary else reply

    async def _summarize(self, progress: _Progress) -> StopReason | None:
        """Let the policy write a summary, with which a new context begins; return as `_take_turn`."""
        if progress.request.replay is not None and len(progress.turns) < len(progress.request.replay.turns):
            raise EnvironmentFault("a summary cannot be replayed", FaultKind.REPLAY)
        clock, number = time.perf_counter(), len(progress.turns)
        generation = await self._sample(progress, self.limits.summary_tokens or 0)
        progress.action_tokens += len(generation.token_ids)
        ended = set(generation.token_ids[-1:]) & set(self.dialect.stop_token_ids)
        text = self.dialect.decode(generation.token_ids[:-1] if ended else generation.token_ids).strip()
        action = ActionTurn((Action(SUMMARY, text),))
        result = TurnResult((Call(SUMMARY, text, ToolOutcome.OK.value),), ())
        latency = time.perf_counter() - clock
        progress.turns.append(_turn(number, generation, action, result, Reply(()), self.dialect, latency, ()))
        progress.past = progress.past[-(self.limits.keep_observations or 0) :]
        progress.opening = self.dialect.prompt_ids(
            summarized(progress.request.task.question, text), progress.first_text, progress.schemas, self._cut
        )
        progress.owes_summary, progress.summarized = False, True
        if self._placeholder and generation.token_ids[-1:] == self._placeholder:
            return StopReason.PLACEHOLDER
        return StopReason.MAX_TOTAL_ACTION_TOKENS if self._actions_left(progress) <= 0 else None

    def _is_nearly_full(self, progress: _Progress, reply: Reply) -> bool:
        """Whether a summary is to be asked for now, since after another turn it would not fit."""
        limits = self.limits
        if limits.summary_tokens is None or progress.images or reply.images or len(progress.turns) + 3 > progress.request.horizon:
            return False
        ahead = limits.max_action_tokens + limits.max_observation_tokens + limits.summary_tokens + _MARKUP
        return self._room(progress) - len(reply.ids) < ahead

    def _begun_anew(self, progress: _Progress) -> tuple[int, ...] | None:
        """Ids of a new context after a summary, or if this one has no room for an action; empty if it goes on, None if nothing fits."""
        keep, most = self.limits.keep_observations, self.limits.max_context_tokens - self.limits.max_action_tokens
        full = bool(progress.turns) and not progress.images and len(progress.context) > most
        if keep is None or not (full or progress.summarized):
            return ()
        ids = shortened(progress.opening, progress.past, keep, most)
        if ids is None and progress.summarized and len(progress.opening) <= most:
            ids = progress.opening
        progress.summarized = False
        return ids

    async def _sample(self, progress: _Progress, most: int) -> Generation:
        """Sample an action of at most `most` tokens. Raises EngineFault, _OutOfTime."""
        request, turn = progress.request, len(progress.turns)
        sampling = Sampling(
            temperature=self.limits.temperature if request.temperature is None else request.temperature,
            top_p=self.limits.top_p,
            max_tokens=min(most, self._room(progress), self._actions_left(progress)),
            stop_token_ids=self.dialect.stop_token_ids + self._placeholder,
            seed=seed_from(request.seed, turn),
            older=uses_lagged_policy(request, turn),
        )
        shown = (progress.images,) if progress.images else ()  # text-only engines need not accept images
        return await _in_time(progress, self.engine.generate(request.trajectory_id, progress.context, sampling, *shown))

    async def _after(self, progress: _Progress, generation: Generation, result: TurnResult) -> tuple[StopReason | None, Reply]:
        """Stop reason after this turn, or None and the observation to append."""
        over = self._over(progress, generation, result)
        if over is not None:
            return over, Reply(())
        try:
            reply = await self._reply(generation, result.results)
        except ContentRefused as refused:
            progress.error = str(refused)
            return StopReason.FAULT, Reply(())
        except ImageFault as fault:
            progress.error = str(EnvironmentFault(str(fault), FaultKind.IMAGE))
            return StopReason.FAULT, Reply(())
        most = self.limits.max_total_observation_tokens
        if most is not None and progress.observation_tokens + len(reply.ids) > most:
            return StopReason.MAX_TOTAL_OBSERVATION_TOKENS, Reply(())
        if len(reply.ids) >= self._room(progress) and (self.limits.keep_observations is None or progress.images or reply.images):
            return StopReason.MAX_CONTEXT_TOKENS, Reply(())
        return None, reply

    async def _reply(self, generation: Generation, results: Sequence[Result]) -> Reply:
        """Images are decoded in a thread, since that takes milliseconds."""
        if any(map(holds_image, results)) and isinstance(self.dialect, TakesImages):
            return await asyncio.to_thread(self.dialect.reply, generation.token_ids, results, self._cut)
        return Reply(self.dialect.reply_ids(generation.token_ids, results, self._cut))

    @property
    def _placeholder(self) -> tuple[int, ...]:
        """Token that the policy may not write, if any. Read every turn; `isinstance` of a protocol would be slow."""
        placeholder = getattr(self.dialect, "placeholder_id", None)
        return () if placeholder is None else (placeholder,)

    def _over(self, progress: _Progress, generation: Generation, result: TurnResult) -> StopReason | None:
        """Stop reason of this action, regardless of the observation."""
        cut_off = generation.stop_reason is GenerationStop.LENGTH
        if result.done:
            return StopReason.ANSWERED
        if result.fault is not None:
            progress.error = result.fault
            return StopReason.FAULT
        if result.out_of_time:
            return StopReason.MAX_SECONDS
        if self._placeholder and generation.token_ids[-1:] == self._placeholder:
            return StopReason.PLACEHOLDER
        if self._room(progress) <= 0 and cut_off:
            return StopReason.MAX_CONTEXT_TOKENS
        if len(progress.turns) + 1 >= progress.request.horizon:
            return StopReason.MAX_TURNS
        return StopReason.MAX_TOTAL_ACTION_TOKENS if self._actions_left(progress) <= 0 else None

    def _room(self, progress: _Progress) -> int:
        return self.limits.max_context_tokens - len(progress.context)

    def _actions_left(self, progress: _Progress) -> int:
        most = self.limits.max_total_action_tokens
        return self.limits.max_context_tokens if most is None else most - progress.action_tokens

    def _deadline(self) -> float | None:
        seconds = self.limits.max_seconds
        return None if seconds is None else asyncio.get_running_loop().time() + seconds

    @property
    def _cut(self) -> Truncation:
        return Truncation(self.limits.max_observation_tokens, self.limits.truncate)


def uses_lagged_policy(request: RolloutRequest, turn: int) -> bool:
    """Whether an older policy samples this action, seeded-random. AgentRL's cross-policy sampling, arXiv 2510.04206."""
    return request.older_share > 0 and random.Random(seed_from("older", request.seed, turn)).random() < request.older_share


def _offered(tools: Sequence[Schema], chosen: Sequence[str] | None) -> tuple[Schema, ...] | None:
    """Schemas that the policy sees; None if a chosen tool does not exist."""
    if chosen is None or not tools:
        return tuple(tools)
    named = {tool["function"]["name"]: tool for tool in tools}
    return tuple(named[name] for name in chosen) if named.keys() >= set(chosen) else None


async def _in_time(progress: _Progress, work: Awaitable[T]) -> T:
    """Await `work` until the trajectory's deadline. Raises _OutOfTime."""
    try:
        async with asyncio.timeout_at(progress.deadline) as limit:
            return await work
    except TimeoutError as error:
        if limit.expired():
            raise _OutOfTime from error
        raise


def _turn(
    index: int,
    generation: Generation,
    action: ActionTurn | ParseError,
    result: TurnResult,
    reply: Reply,
    dialect: RolloutDialect,
    latency: float,
    context_ids: tuple[int, ...],
) -> Turn:
    first = action.calls[0] if isinstance(action, ActionTurn) else None
    versions = generation.policy_versions
    return Turn(
        index=index,
        action_ids=generation.token_ids,
        action_logprobs=generation.logprobs,
        action=dialect.decode(generation.token_ids),
        tool=None if first is None else first.tool,
        arguments=None if first is None else first.arguments,
        observation_ids=reply.ids,
        observation=dialect.decode(collapse_images(reply.ids, reply.images)),
        reward=result.reward,
        tool_outcome=result.outcome,
        latency=latency,
        policy_version=generation.policy_version,
        policy_versions=versions if len(set(versions)) > 1 else (),
        calls=result.calls,
        images=tuple(placed.image for placed in reply.images),
        context_ids=context_ids,
    )
