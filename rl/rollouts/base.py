"""What a rollout is asked for, and what takes part in it: the request, the choices of its task, the engine, the environment, the loop.

A task chooses in its provenance, under `rollout`; what it leaves open is the configuration's. So tasks of several environments and
dialects may stand in one call of `rollout`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pydantic import ValidationError

from rl.engines.base import Generator
from rl.envs.base import Observation, Step
from rl.renderers.base import Action, Dialect
from rl.rollouts.config import Limits
from warehouse.errors import RequestError
from warehouse.records import Outcome, StopReason, Task, Trajectory, Turn
from warehouse.settings import Section, first_error

KEY = "rollout"
"""Where the choice stands in a task's provenance."""


class RolloutChoice(Section):
    """What one task asks for; None is whatever the configuration says, and for tools all that the environment has."""

    loop: str | None = None
    dialect: str | None = None
    tools: tuple[str, ...] | None = None
    """The tools that the policy is shown and may call, by name; an answer is always possible."""


def choice_of(task: Task) -> RolloutChoice:
    """What `task` asks for.

    Raises:
        RequestError: where its provenance holds something else under `rollout`.
    """
    try:
        return RolloutChoice.model_validate(task.provenance.get(KEY, {}))
    except ValidationError as error:
        raise RequestError(f"the provenance of task {task.key!r} does not fit at {KEY}.{first_error(error)}.") from error


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
        """The trajectory's record, not yet graded, except that a fault makes it invalid."""
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


class EnvironmentHandle(Protocol):
    """The environment of one trajectory as an agent loop sees it: it raises `EnvironmentFault` and nothing else."""

    async def reset(self, task: Task, seed: int) -> Observation: ...

    async def step(self, action: Action) -> Step: ...


class Loop(Protocol):
    """Runs trajectories."""

    async def run(self, request: RolloutRequest, environment: EnvironmentHandle) -> Trajectory:
        """Run one trajectory to its end."""
        ...


LoopFactory = Callable[[Generator, Dialect, Limits], Loop]
