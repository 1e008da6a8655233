"""The agent loop: one trajectory from its question to its end.

Token ids are only ever appended: what the engine sampled, then what the dialect made of the observations. Nothing is decoded and
encoded again. All trajectories run side by side in asyncio, so that a slow tool holds up its own trajectory alone. The calls of one turn
run at once.

    act -> ended by a call (an answer, or the environment says done)   -> ANSWERED
        -> that was the last turn of the horizon                       -> MAX_TURNS
        -> all actions, or all observations, come to their limit       -> MAX_TOTAL_ACTION_TOKENS, MAX_TOTAL_OBSERVATION_TOKENS
        -> the observation, or another action, does not fit            -> MAX_CONTEXT_TOKENS
        -> append the observation and act again
    the policy writes the token that stands for an image              -> PLACEHOLDER
    the time is over anywhere                                          -> MAX_SECONDS
    an engine or an environment fails anywhere                         -> FAULT: the trajectory is invalid
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from rl.config import Limits
from rl.content import PlacedImage, collapsed
from rl.engine import EngineFault, Generation, GenerationStop, Sampling
from rl.environment import EnvironmentFault, FaultKind, Observation, Step
from rl.images import ImageFault
from rl.renderers.base import Action, ActionTurn, ContentRefused, Cut, Dialect, ParseError, Reply, Result, Schema, TakesImages, holds_image
from rl.rollouts.calling import Acted, act
from rl.rollouts.choices import choice_of
from warehouse.digests import seed_from
from warehouse.records import Outcome, StopReason, Task, Trajectory, Turn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One trajectory that is wanted. `horizon` is its number of turns; without `temperature` the configured one is used.

    `older_share` is the probability of each action to be sampled by an older policy, where the engines hold one.
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

    def trajectory(
        self,
        prompt_ids: tuple[int, ...],
        turns: tuple[Turn, ...],
        stop: StopReason,
        started: datetime | None,
        seconds: float | None,
        error: str | None,
    ) -> Trajectory:
        """What came of the request, as a record. Who judges it comes later, except that a fault makes it invalid here."""
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
        )


class Generator(Protocol):
    """The part of an `Engine` that the loop uses."""

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[PlacedImage] = ()
    ) -> Generation: ...


class Surroundings(Protocol):
    """The environment of one trajectory as the loop sees it: it raises `EnvironmentFault` and nothing else."""

    async def reset(self, task: Task, seed: int) -> Observation: ...

    async def step(self, action: Action) -> Step: ...


class _OutOfTime(Exception):
    """The trajectory's time is over."""


@dataclass(slots=True)
class _Progress:
    """What a trajectory has come to so far. `deadline` is of the event loop's clock."""

    request: RolloutRequest
    environment: Surroundings
    tools: tuple[str, ...] | None
    deadline: float | None
    prompt_ids: tuple[int, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    images: list[PlacedImage] = field(default_factory=list)
    action_tokens: int = 0
    observation_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """Runs trajectories on an engine, in a dialect, within limits; keeps nothing between them."""

    engine: Generator
    dialect: Dialect
    limits: Limits

    async def run(self, request: RolloutRequest, environment: Surroundings) -> Trajectory:
        """Run one trajectory to its end. Faults end it as invalid; whatever else is raised is a defect and is let through."""
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
        task = progress.request.task
        first = await _in_time(progress, progress.environment.reset(task, progress.request.seed))
        tools = _offered(first.tools, progress.tools)
        if tools is None:
            there = ", ".join(tool["function"]["name"] for tool in first.tools)
            progress.error = (
                f"the task may call {', '.join(progress.tools or ())}, and its environment {task.environment!r} has only {there}"
            )
            return StopReason.FAULT
        progress.prompt_ids = self.dialect.prompt_ids(task.question, first.text, tools, self._cut)
        progress.context = list(progress.prompt_ids)
        stop = None if self._room(progress) > 0 else StopReason.MAX_CONTEXT_TOKENS
        while stop is None:
            stop = await self._take_turn(progress)
        return stop

    async def _take_turn(self, progress: _Progress) -> StopReason | None:
        """One action and what comes back, appended to `progress`; why the trajectory is over, or None where it goes on."""
        clock = time.perf_counter()
        shown = (progress.images,) if progress.images else ()  # an engine of text alone need not know of images
        work = self.engine.generate(progress.request.trajectory_id, progress.context, self._sampling(progress), *shown)
        generation = await _in_time(progress, work)
        progress.context.extend(generation.token_ids)
        progress.action_tokens += len(generation.token_ids)
        action = self.dialect.parse(generation.token_ids)
        acted = await act(action, progress.environment, progress.tools, progress.deadline)
        stop, reply = await self._after(progress, generation, acted)
        progress.images.extend(replace(placed, start=placed.start + len(progress.context)) for placed in reply.images)
        progress.context.extend(reply.ids)
        progress.observation_tokens += len(reply.ids)
        latency = time.perf_counter() - clock
        progress.turns.append(_turn(len(progress.turns), generation, action, acted, reply, self.dialect, latency))
        return stop

    def _sampling(self, progress: _Progress) -> Sampling:
        request = progress.request
        return Sampling(
            temperature=self.limits.temperature if request.temperature is None else request.temperature,
            top_p=self.limits.top_p,
            max_tokens=min(self.limits.max_action_tokens, self._room(progress), self._actions_left(progress)),
            stop_token_ids=self.dialect.stop_token_ids + self._placeholder,
            seed=seed_from(request.seed, len(progress.turns)),
            older=is_older(request, len(progress.turns)),
        )

    async def _after(self, progress: _Progress, generation: Generation, acted: Acted) -> tuple[StopReason | None, Reply]:
        """Whether the trajectory ends after this turn, and the observation that is appended where it does not."""
        over = self._over(progress, generation, acted)
        if over is not None:
            return over, Reply(())
        try:
            reply = await self._reply(generation, acted.results)
        except ContentRefused as refused:
            progress.error = str(refused)
            return StopReason.FAULT, Reply(())
        except ImageFault as fault:
            progress.error = str(EnvironmentFault(str(fault), FaultKind.IMAGE))
            return StopReason.FAULT, Reply(())
        most = self.limits.max_total_observation_tokens
        if most is not None and progress.observation_tokens + len(reply.ids) > most:
            return StopReason.MAX_TOTAL_OBSERVATION_TOKENS, Reply(())
        if len(reply.ids) >= self._room(progress):
            return StopReason.MAX_CONTEXT_TOKENS, Reply(())
        return None, reply

    async def _reply(self, generation: Generation, results: Sequence[Result]) -> Reply:
        """What is appended; images are looked at in a thread, for that takes milliseconds that are the other trajectories'."""
        if any(map(holds_image, results)) and isinstance(self.dialect, TakesImages):
            return await asyncio.to_thread(self.dialect.reply, generation.token_ids, results, self._cut)
        return Reply(self.dialect.reply_ids(generation.token_ids, results, self._cut))

    @property
    def _placeholder(self) -> tuple[int, ...]:
        """The token that no policy may write, where there is one; asked at every turn, and `isinstance` of a protocol takes its time."""
        placeholder = getattr(self.dialect, "placeholder_id", None)
        return () if placeholder is None else (placeholder,)

    def _over(self, progress: _Progress, generation: Generation, acted: Acted) -> StopReason | None:
        """Why the trajectory ends with this action, whatever came of it, or None."""
        cut_off = generation.stop_reason is GenerationStop.LENGTH
        if acted.done:
            return StopReason.ANSWERED
        if acted.fault is not None:
            progress.error = acted.fault
            return StopReason.FAULT
        if acted.out_of_time:
            return StopReason.MAX_SECONDS
        if self._placeholder and generation.token_ids[-1:] == self._placeholder:
            return StopReason.PLACEHOLDER
        if self._room(progress) <= 0 and cut_off:
            return StopReason.MAX_CONTEXT_TOKENS
        if len(progress.turns) + 1 >= progress.request.horizon:
            return StopReason.MAX_TURNS
        return StopReason.MAX_TOTAL_ACTION_TOKENS if self._actions_left(progress) <= 0 else None

    def _room(self, progress: _Progress) -> int:
        """Tokens that the context may still grow by."""
        return self.limits.max_context_tokens - len(progress.context)

    def _actions_left(self, progress: _Progress) -> int:
        """Tokens that the policy may still write."""
        most = self.limits.max_total_action_tokens
        return self.limits.max_context_tokens if most is None else most - progress.action_tokens

    def _deadline(self) -> float | None:
        seconds = self.limits.max_seconds
        return None if seconds is None else asyncio.get_running_loop().time() + seconds

    @property
    def _cut(self) -> Cut:
        return Cut(self.limits.max_observation_tokens, self.limits.truncate)


def is_older(request: RolloutRequest, turn: int) -> bool:
    """Whether an older policy is to sample this action: by chance, seeded. AgentRL's cross-policy sampling, arXiv 2510.04206."""
    return request.older_share > 0 and random.Random(seed_from("older", request.seed, turn)).random() < request.older_share


def _offered(tools: Sequence[Schema], chosen: Sequence[str] | None) -> tuple[Schema, ...] | None:
    """The tools that the policy is told of; None where one is chosen that an environment which says what it has does not have."""
    if chosen is None or not tools:
        return tuple(tools)
    named = {tool["function"]["name"]: tool for tool in tools}
    return tuple(named[name] for name in chosen) if named.keys() >= set(chosen) else None


async def _in_time(progress: _Progress, work: Awaitable[T]) -> T:
    """The result of `work`, where it comes before the trajectory's time is over."""
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
    acted: Acted,
    reply: Reply,
    dialect: Dialect,
    latency: float,
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
        observation=dialect.decode(collapsed(reply.ids, reply.images)),
        reward=acted.reward,
        tool_outcome=acted.outcome,
        latency=latency,
        policy_version=generation.policy_version,
        policy_versions=versions if len(set(versions)) > 1 else (),
        calls=acted.calls,
        images=tuple(placed.image for placed in reply.images),
    )
