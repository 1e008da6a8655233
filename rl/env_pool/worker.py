"""A process that runs many environments of one kind concurrently; used as a Ray actor.

`RLIMIT_DATA` limits its memory: it counts private writable memory, but unlike `RLIMIT_AS` neither the shared object store nor code. An
allocation beyond it raises `MemoryError`, which becomes a fault; the pool then replaces the worker, because the trajectory that used the
memory is unknown.
"""

from __future__ import annotations

import asyncio
import math
import resource
from collections.abc import Awaitable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from rl.content import mended
from rl.env_pool.batched_actor import BatchedActor
from rl.envs.base import (
    Environment,
    EnvironmentFactory,
    EnvironmentFault,
    FaultKind,
    Observation,
    Probed,
    Resources,
    Step,
    fault_kind,
    find_environment,
)
from rl.envs.config import EnvironmentKindConfig
from rl.hardware import GIB
from rl.renderers.base import Action
from rl.retrieval.indexes import Indexes
from rl.retrieval.search import Index
from rl.tools.deadline import deadline
from warehouse.errors import RequestError, with_type
from warehouse.records import Task

T = TypeVar("T")


class EnvironmentWorker(BatchedActor):
    """Runs environments of one kind, keyed by trajectory id."""

    def __init__(self, factory: str, config: EnvironmentKindConfig, indexes: Indexes) -> None:
        super().__init__()
        self._factory_name = factory
        self._seconds = config.step_timeout_seconds
        self._indexes = indexes
        self._resources = Resources(options=config.options)
        self._environments: dict[str, Environment] = {}
        self._closing: dict[str, asyncio.Future[None]] = {}
        """Pending closes of trajectories that a step ended, until that step is answered."""
        if config.memory_gib is not None:
            limit_memory(int(config.memory_gib * GIB))

    async def check(self) -> None:
        """Create, probe and close an environment; raises what a trajectory would fail with."""
        environment = self._create("", self._indexes.any)
        if isinstance(environment, Probed):
            await self._guarded(environment.probe(), "probe")
        await self._guarded(environment.close(), "close")

    async def reset(self, trajectory_id: str, task: Task, seed: int) -> Observation:
        """Begin a trajectory; an unfinished one with the same id is closed."""
        with deadline(self._seconds):
            await self.close(trajectory_id)
            environment = self._environments[trajectory_id] = self._create(trajectory_id, self._indexes.of(task))
            first = await self._guarded(environment.reset(task, seed), "reset")
        return replace(first, text=mended(first.text))

    async def step(self, trajectory_id: str, action: Action) -> Step:
        """Answer an action; close the environment if that ends the trajectory.

        A concurrent action then fails, but only after the ending one is answered. Otherwise the agent loop would not know yet that the
        trajectory is over and count a fault.
        """
        try:
            step = await self._step(trajectory_id, action)
        except EnvironmentFault:
            if (closing := self._closing.get(trajectory_id)) is not None:
                await asyncio.wait([closing])
            raise
        if step.done:
            closing = self._closing.setdefault(trajectory_id, asyncio.ensure_future(self.close(trajectory_id)))
            try:
                await closing
            finally:
                self._closing.pop(trajectory_id, None)
        return replace(step, observation=mended(step.observation))

    async def _step(self, trajectory_id: str, action: Action) -> Step:
        environment = self._environments.get(trajectory_id)
        if environment is None:
            raise EnvironmentFault("this trajectory has no environment: it has ended or never began")
        step = await self._guarded(environment.step(action), "step")
        if step.reward is not None and not math.isfinite(step.reward):
            raise EnvironmentFault(f"the environment returned the reward {step.reward}, which is not a finite number")
        return step

    async def close(self, trajectory_id: str) -> None:
        environment = self._environments.pop(trajectory_id, None)
        if environment is not None:
            await self._guarded(environment.close(), "close")

    @cached_property
    def _factory(self) -> EnvironmentFactory:
        """Cached, because searching installed packages takes longer than most steps."""
        return find_environment(self._factory_name)

    def _create(self, trajectory_id: str, index: Index | None) -> Environment:
        return self._factory(replace(self._resources, index=index, trajectory_id=trajectory_id))

    async def _guarded(self, work: Awaitable[T], what: str) -> T:
        """Await `work`; any exception becomes a one-line fault with its kind."""
        try:
            with deadline(self._seconds) as limit:
                async with asyncio.timeout(limit.remaining) as expiry:
                    return await work
        except (EnvironmentFault, RequestError):
            raise
        except MemoryError as error:
            raise EnvironmentFault(f"the environment's {what} needed more memory than its worker may use", FaultKind.MEMORY) from error
        except Exception as error:
            if expiry.expired():
                message = f"the environment's {what} took longer than {self._seconds:g} seconds"
                raise EnvironmentFault(message, FaultKind.TIMEOUT) from error
            raise EnvironmentFault(with_type(error), fault_kind(error)) from error


def limit_memory(size: int) -> None:
    """Limit this process to `size` bytes more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    wanted = pages * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
