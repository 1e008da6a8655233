"""Environments on Ray: a few worker actors, each multiplexing the environments of many trajectories.

The corpus's index lies once in the object store and is shared by all workers. An exception in an environment, a step that takes
too long and a worker that dies are faults: the trajectory becomes invalid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rl.config import EnvironmentPoolConfig
from rl.dialect import Action
from rl.environment import Environment, EnvironmentFault, Observation, Probed, Resources, Step, find_environment
from rl.search import SearchIndex
from warehouse.errors import RequestError
from warehouse.records import Task

T = TypeVar("T")
PROCESS_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class EnvironmentWorker:
    """Runs environments side by side in one process; a Ray actor in use."""

    def __init__(self, config: EnvironmentPoolConfig, index: SearchIndex | None) -> None:
        self._config = config
        self._index = index
        self._resources: dict[str, Resources] = {}
        self._environments: dict[str, Environment] = {}

    async def check(self, name: str) -> None:
        """Make an environment called `name`, ask it whether all is there, and throw it away; raises what a trajectory would fail with."""
        environment = self._create(name, "")
        if isinstance(environment, Probed):
            await self._in_time(environment.probe(), "probe")
        await environment.close()

    async def reset(self, trajectory_id: str, task: Task, seed: int) -> Observation:
        """Begin a trajectory; one of the same id that was under way is dropped."""
        await self.close(trajectory_id)
        environment = self._environments[trajectory_id] = self._create(task.environment, trajectory_id)
        return await self._in_time(environment.reset(task, seed), "reset")

    async def step(self, trajectory_id: str, action: Action) -> Step:
        """Answer an action; the environment is closed where that ends the trajectory."""
        step = await self._in_time(self._environments[trajectory_id].step(action), "step")
        if step.done:
            await self.close(trajectory_id)
        return step

    async def close(self, trajectory_id: str) -> None:
        """Close the environment of a trajectory, if there is one."""
        environment = self._environments.pop(trajectory_id, None)
        if environment is not None:
            await self._in_time(environment.close(), "close")

    def _create(self, name: str, trajectory_id: str) -> Environment:
        resources = self._resources.setdefault(name, Resources(self._index, self._config.options.get(name, {})))
        return find_environment(name)(replace(resources, trajectory_id=trajectory_id))

    async def _in_time(self, work: Awaitable[T], what: str) -> T:
        seconds = self._config.step_timeout_seconds
        try:
            return await asyncio.wait_for(work, seconds)
        except TimeoutError as error:
            raise EnvironmentFault(f"the environment's {what} took longer than {seconds:g} seconds") from error


class EnvironmentClient:
    """The environment of one trajectory, as the agent loop sees it: raises `EnvironmentFault` and nothing else."""

    def __init__(self, pool: EnvironmentPool, worker: Any, trajectory_id: str) -> None:
        self._pool = pool
        self._worker = worker
        self._trajectory_id = trajectory_id
        self._open = False

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin."""
        self._open = True
        return await self._faults(self._worker.reset.remote(self._trajectory_id, task, seed))

    async def step(self, action: Action) -> Step:
        """Answer one action."""
        step: Step = await self._faults(self._worker.step.remote(self._trajectory_id, action))
        self._open = not step.done
        return step

    async def close(self) -> None:
        """Let the worker forget this trajectory; nobody waits for it."""
        if self._open:
            self._worker.close.remote(self._trajectory_id)

    async def _faults(self, call: Awaitable[T]) -> T:
        """The result of a call to the worker; whatever went wrong there is a fault, told in one line."""
        try:
            return await call
        except RayError as error:
            if isinstance(error, RayActorError):
                self._open = False
                self._pool.replace(self._worker)
            raise EnvironmentFault(_one_line(error)) from error


class EnvironmentPool:
    """The workers, and who is on which."""

    def __init__(self, config: EnvironmentPoolConfig, index: SearchIndex | None) -> None:
        """Start the workers on the Ray that is running."""
        self._config = config
        self._index = ray.put(index)
        self._workers: list[Any] = [self._launch() for _ in range(config.workers)]
        self._next = 0

    async def check(self, name: str) -> None:
        """See that environments called `name` can be made.

        Raises:
            RequestError: where they cannot.
        """
        try:
            await self._workers[0].check.remote(name)
        except RayTaskError as error:
            raise RequestError(f"the environment {name!r} cannot be made: {_one_line(error)}") from error

    def client(self, trajectory_id: str) -> EnvironmentClient:
        """The environment of a trajectory, on the next worker in turn."""
        self._next = (self._next + 1) % len(self._workers)
        return EnvironmentClient(self, self._workers[self._next], trajectory_id)

    def replace(self, dead: Any) -> None:
        """Put a new worker in the place of one that died."""
        if dead in self._workers:
            self._workers[self._workers.index(dead)] = self._launch()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []

    def _launch(self) -> Any:
        actor: Any = ray.remote(EnvironmentWorker).options(
            num_cpus=self._config.cpus, max_concurrency=10_000, runtime_env={"env_vars": PROCESS_ENVIRONMENT}
        )
        return actor.remote(self._config, self._index)


def _one_line(error: RayError) -> str:
    """What went wrong in a worker, without its traceback."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    text = str(cause) if isinstance(cause, EnvironmentFault | RequestError) else f"{type(cause).__name__}: {cause}"
    return text.strip().splitlines()[0]
