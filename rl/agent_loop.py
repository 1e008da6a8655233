"""The agent loop: one trajectory from its question to its end.

Token ids are only ever appended: what the engine sampled, then what the dialect made of the observation. Nothing is decoded and
encoded again. All trajectories run side by side in asyncio, so that a slow tool holds up its own trajectory alone.

    act -> ended by the action (answer, or the environment says done)  -> ANSWERED
        -> that was the last turn of the horizon                       -> MAX_TURNS
        -> the observation, or another action, does not fit            -> MAX_CONTEXT_TOKENS
        -> append the observation and act again
    an engine or an environment fails anywhere                         -> FAULT: the trajectory is invalid
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from rl.config import Limits
from rl.dialect import Action, Dialect, ParseError
from rl.engine import EngineFault, Generation, GenerationStop, Sampling
from rl.environment import EnvironmentFault, Observation, Step, ToolOutcome
from warehouse.digests import seed_from
from warehouse.records import Outcome, StopReason, Task, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One trajectory that is wanted. `horizon` is its number of turns; without `temperature` the configured one is used."""

    trajectory_id: str
    task: Task
    policy: str
    horizon: int
    seed: int
    temperature: float | None = None
    stage: str = "rl"
    wheel_turn: int = 1
    step: int | None = None
    suite: str | None = None
    sample: int = 0


class Generator(Protocol):
    """The part of an `Engine` that the loop uses."""

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation: ...


class Surroundings(Protocol):
    """The environment of one trajectory as the loop sees it: it raises `EnvironmentFault` and nothing else."""

    async def reset(self, task: Task, seed: int) -> Observation: ...

    async def step(self, action: Action) -> Step: ...


@dataclass(slots=True)
class _Progress:
    """What a trajectory has come to so far."""

    request: RolloutRequest
    environment: Surroundings
    prompt_ids: tuple[int, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    context: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AgentLoop:
    """Runs trajectories on an engine, in a dialect, within limits; keeps nothing between them."""

    engine: Generator
    dialect: Dialect
    limits: Limits

    async def run(self, request: RolloutRequest, environment: Surroundings) -> Trajectory:
        """Run one trajectory to its end. Faults end it as invalid; whatever else is raised is a defect and is let through."""
        started, clock = datetime.now(UTC), time.perf_counter()
        progress, error = _Progress(request, environment), None
        try:
            stop = await self._run(progress)
        except (EngineFault, EnvironmentFault) as fault:
            stop, error = StopReason.FAULT, str(fault)
        return _record(progress, stop, error, started, time.perf_counter() - clock)

    async def _run(self, progress: _Progress) -> StopReason:
        task = progress.request.task
        first = await progress.environment.reset(task, progress.request.seed)
        progress.prompt_ids = self.dialect.prompt_ids(task.question)
        if first.text:
            progress.prompt_ids += self.dialect.observation_ids(first.text, self.limits.max_observation_tokens)
        progress.context = list(progress.prompt_ids)
        stop = None if self._room(progress) > 0 else StopReason.MAX_CONTEXT_TOKENS
        while stop is None:
            stop = await self._take_turn(progress)
        return stop

    async def _take_turn(self, progress: _Progress) -> StopReason | None:
        """One action and what comes back, appended to `progress`; why the trajectory is over, or None where it goes on."""
        clock = time.perf_counter()
        generation = await self.engine.generate(progress.request.trajectory_id, progress.context, self._sampling(progress))
        progress.context.extend(generation.token_ids)
        action = self.dialect.parse(generation.token_ids)
        step = await progress.environment.step(action) if isinstance(action, Action) else _correction(action)
        stop, observation_ids = self._after(progress, generation, step)
        progress.context.extend(observation_ids)
        latency = time.perf_counter() - clock
        progress.turns.append(_turn(len(progress.turns), generation, action, step, observation_ids, self.dialect, latency))
        return stop

    def _sampling(self, progress: _Progress) -> Sampling:
        request = progress.request
        return Sampling(
            temperature=self.limits.temperature if request.temperature is None else request.temperature,
            top_p=self.limits.top_p,
            max_tokens=min(self.limits.max_action_tokens, self._room(progress)),
            stop_token_ids=self.dialect.stop_token_ids,
            seed=seed_from(request.seed, len(progress.turns)),
        )

    def _after(self, progress: _Progress, generation: Generation, step: Step) -> tuple[StopReason | None, tuple[int, ...]]:
        """Whether the trajectory ends after this turn, and the observation that is appended where it does not."""
        room = self._room(progress)
        if step.done:
            return StopReason.ANSWERED, ()
        if room <= 0 and generation.stop_reason is GenerationStop.LENGTH:
            return StopReason.MAX_CONTEXT_TOKENS, ()
        if len(progress.turns) + 1 >= progress.request.horizon:
            return StopReason.MAX_TURNS, ()
        observation_ids = self.dialect.observation_ids(step.observation, self.limits.max_observation_tokens)
        if len(observation_ids) >= room:
            return StopReason.MAX_CONTEXT_TOKENS, ()
        return None, observation_ids

    def _room(self, progress: _Progress) -> int:
        """Tokens that the context may still grow by."""
        return self.limits.max_context_tokens - len(progress.context)


def _correction(error: ParseError) -> Step:
    """What the policy sees after an action that cannot be read."""
    return Step(f"Error: {error.reason}", tool_outcome=ToolOutcome.UNPARSABLE)


def _turn(
    index: int,
    generation: Generation,
    action: Action | ParseError,
    step: Step,
    observation_ids: tuple[int, ...],
    dialect: Dialect,
    latency: float,
) -> Turn:
    return Turn(
        index=index,
        action_ids=generation.token_ids,
        action_logprobs=generation.logprobs,
        action=dialect.decode(generation.token_ids),
        tool=action.tool if isinstance(action, Action) else None,
        arguments=action.arguments if isinstance(action, Action) else None,
        observation_ids=observation_ids,
        observation=dialect.decode(observation_ids),
        reward=step.reward,
        tool_outcome=None if step.tool_outcome is None else step.tool_outcome.value,
        latency=latency,
        policy_version=generation.policy_version,
    )


def _record(progress: _Progress, stop: StopReason, error: str | None, started: datetime, seconds: float) -> Trajectory:
    """The trajectory as a record; who judges it comes later, except that a fault makes it invalid here."""
    request = progress.request
    return Trajectory(
        id=request.trajectory_id,
        task_key=request.task.key,
        policy=request.policy,
        stage=request.stage,
        horizon=request.horizon,
        prompt_ids=progress.prompt_ids,
        turns=tuple(progress.turns),
        stop_reason=stop,
        outcome=Outcome.INVALID if stop is StopReason.FAULT else None,
        reward=None,
        seed=request.seed,
        started=started,
        seconds=seconds,
        wheel_turn=request.wheel_turn,
        step=request.step,
        suite=request.suite,
        sample=request.sample,
        error=error,
    )
