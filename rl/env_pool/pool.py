"""Environments on Ray: worker actors of each kind of environment, and the trajectories they run.

The corpus's indexes are stored once in Ray's object store and shared by all workers. Exceptions in an environment, steps over their time
limit, and workers that die or exceed their memory become faults with a kind: the trajectory becomes invalid. Dead, stuck and
out-of-memory workers are replaced.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rl.env_pool import circuit_breaker
from rl.env_pool.batched_actor import BatchedActorClient, CallFailed
from rl.env_pool.circuit_breaker import EnvironmentFigures
from rl.env_pool.worker import EnvironmentWorker
from rl.envs.base import ENVIRONMENTS, EnvironmentFault, FaultKind, Observation, Step
from rl.envs.config import EnvironmentKindConfig, EnvironmentPoolConfig
from rl.renderers.base import Action
from rl.retrieval.indexes import Indexes
from rl.tools.deadline import deadline
from rl.worker_death import worker_died
from warehouse.errors import RequestError, first_line, with_type
from warehouse.records import Task

T = TypeVar("T")
PROCESS_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONSAFEPATH": "1"}
START_SECONDS = 180.0
"""Seconds for the workers of a kind to start and create their environment once as a check."""
HUNG_SECONDS = 30.0
"""Seconds after a call's deadline before its worker counts as stuck and is replaced."""


@dataclass(slots=True, eq=False)
class Worker:
    """A worker actor; `checked` resolves once it is up and has created an environment, and is None after a failed check."""

    actor: Any
    client: BatchedActorClient
    checked: Any
    up: bool = False
    ended: FaultKind | None = None
    """Why it was replaced, or None."""
    death_counted: bool = False
    """The circuit breaker has counted its death; one death is one fault, however many trajectories it ended."""


@dataclass(slots=True)
class Kind:
    """The workers of one kind of environment."""

    name: str
    factory: str
    config: EnvironmentKindConfig
    workers: list[Worker] = field(default_factory=list)
    latest: int = 0
    """Index of the worker of the latest trajectory."""
    trajectories: int = 0
    replaced: int = 0

    def next(self) -> Worker:
        """The next worker, round robin."""
        self.latest = (self.latest + 1) % len(self.workers)
        return self.workers[self.latest]


class PooledEnvironment:
    """Environment of one trajectory, for the agent loop; raises only `EnvironmentFault`."""

    def __init__(self, pool: EnvironmentPool, kind: Kind, trajectory_id: str) -> None:
        self._pool = pool
        self._kind = kind
        self._worker = kind.next()
        kind.trajectories += 1
        self._trajectory_id = trajectory_id
        self._open = self._ended = False
        self._fault: str | None = None
        self._counts = True
        self.tools: tuple[str, ...] = ()
        """Names of the tools that it offers, known after `reset`."""
        self.lost = False
        """The worker ended before the trajectory did."""
        self.suspect = False
        """The worker ended during a call of this trajectory, which may be the cause."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin the trajectory once its worker is up."""
        try:
            if not self._worker.up:
                await self._check()
            self._open = True
            first: Observation = await self._call("reset", task, seed)
            self.tools = tuple(schema["function"]["name"] for schema in first.tools)
            return first
        except EnvironmentFault as fault:
            self._fault = str(fault)
            raise

    async def step(self, action: Action) -> Step:
        tool = circuit_breaker.tool(action.tool)
        try:
            step: Step = await self._call("step", action)
        except EnvironmentFault as fault:
            # Calls concurrent with the one that ended the trajectory fail; this is no fault of the tool.
            if not self._ended:
                self._fault = str(fault)
                if self._counts:
                    self._pool.breaker.record(tool, self._fault)
            raise
        self._pool.breaker.record(tool, None)
        self._ended |= step.done
        self._open = not self._ended
        return step

    async def close(self) -> None:
        """Close the environment in its worker, without waiting, and record the trajectory's outcome."""
        self._kind.trajectories -= 1
        if self._open:
            self._worker.client.send("close", self._trajectory_id)
        if self._fault is None or self._counts:
            self._pool.breaker.record(circuit_breaker.environment(self._kind.name), self._fault)

    async def _check(self) -> None:
        """Wait until the worker is up. If that fails, the next trajectory checks again, since dependencies may be down temporarily."""
        worker = self._worker
        if worker.checked is None:
            worker.checked = worker.actor.check.remote()
        checked = worker.checked
        try:
            await self._faults(checked, START_SECONDS)
        except EnvironmentFault:
            if worker.checked is checked:
                worker.checked = None
            raise
        worker.up = True

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call the worker with the deadline of a step or reset."""
        with deadline(self._kind.config.step_timeout_seconds) as limit:
            return await self._faults(self._worker.client.call(method, self._trajectory_id, *arguments), limit.seconds + HUNG_SECONDS)

    async def _faults(self, call: Awaitable[T], seconds: float) -> T:
        """Await a call to the worker; errors are raised as `EnvironmentFault`."""
        ended_before = self._worker.ended is not None
        try:
            return await asyncio.wait_for(call, seconds)
        except (CallFailed, RayError, TimeoutError) as error:
            fault = self._fault_of(error)
            self._counts = fault.kind is not FaultKind.DIED or not self._worker.death_counted
            self._worker.death_counted |= fault.kind is FaultKind.DIED
            ended = not isinstance(error, CallFailed | RayTaskError)
            if fault.kind is FaultKind.MEMORY or ended:
                self._open, self.lost, self.suspect = False, ended, ended and not ended_before
                self._pool.replace(self._kind, self._worker, fault.kind)
            raise fault from error

    def _fault_of(self, error: Exception) -> EnvironmentFault:
        if isinstance(error, CallFailed | RayTaskError):
            return error.cause if isinstance(error.cause, EnvironmentFault) else EnvironmentFault(_describe(error))
        if isinstance(error, TimeoutError):
            return EnvironmentFault("the environment's worker was stuck in a step and has been replaced", FaultKind.TIMEOUT)
        kind = self._worker.ended or FaultKind.DIED
        if isinstance(error, RayActorError):
            return EnvironmentFault("the environment's worker died", kind)
        return EnvironmentFault(with_type(error), kind)


class EnvironmentPool:
    """Workers of all opened kinds, and their circuit breaker."""

    def __init__(self, config: EnvironmentPoolConfig, indexes: Indexes) -> None:
        """Create a pool on the running Ray; workers start when their kind is opened."""
        self.breaker = circuit_breaker.CircuitBreaker(config.fault_window, config.max_fault_share)
        self._config = config
        self._indexes = ray.put(indexes)
        self._kinds: dict[str, Kind] = {}

    async def open(self, name: str) -> None:
        """Start the workers of environment `name` and check in each that the environment can be created. Idempotent.

        Raises:
            RequestError: it cannot be created.
            WorkerDied: a worker died.
        """
        if name in self._kinds:
            return
        factory = ENVIRONMENTS.resolve_recorded(name, self._config.listed)
        config = self._config.kind(name)
        _check_image(name, config.image)
        kind = Kind(name, factory, config)
        kind.workers = [self._launch(kind) for _ in range(config.workers)]
        try:
            await asyncio.wait_for(asyncio.gather(*(worker.checked for worker in kind.workers)), START_SECONDS)
        except (RayError, TimeoutError) as error:
            _end(kind)
            if (died := worker_died(f"the worker of the environment {name!r}", error)) is not None:
                raise died from error
            raise RequestError(f"the environment {name!r} cannot be created: {_start_fault(error, config)}") from error
        self._kinds[name] = kind

    def client(self, name: str, trajectory_id: str) -> PooledEnvironment:
        """Environment of a trajectory, on the next worker of an opened kind."""
        return PooledEnvironment(self, self._kinds[name], trajectory_id)

    def replace(self, kind: Kind, worker: Worker, why: FaultKind) -> None:
        if worker in kind.workers:
            worker.ended = why
            kind.replaced += 1
            ray.kill(worker.actor)
            kind.workers[kind.workers.index(worker)] = self._launch(kind)

    def figures(self) -> tuple[EnvironmentFigures, ...]:
        kinds = list(self._kinds.values())
        return tuple(EnvironmentFigures(kind.name, len(kind.workers), kind.trajectories, kind.replaced) for kind in kinds)

    def close(self) -> None:
        for kind in self._kinds.values():
            _end(kind)
        self._kinds = {}

    def _launch(self, kind: Kind) -> Worker:
        remote: Any = ray.remote(EnvironmentWorker).options(**worker_options(kind.config))
        actor = remote.remote(kind.factory, kind.config, self._indexes)
        return Worker(actor, BatchedActorClient(actor), actor.check.remote())


def worker_options(config: EnvironmentKindConfig) -> dict[str, Any]:
    runtime: dict[str, Any] = {"env_vars": PROCESS_ENVIRONMENT}
    return {
        "num_cpus": config.cpus,
        "num_gpus": config.gpus,
        "max_concurrency": 10_000,
        "runtime_env": runtime if config.image is None else runtime | {"image_uri": config.image},
    }


def _check_image(name: str, image: str | None) -> None:
    if image is not None and shutil.which("podman") is None:
        raise RequestError(
            f"the environment {name!r} needs the container image {image}, and Ray starts containers with podman, which is not on this "
            "machine; install podman, or unset rollout.environments.kinds.NAME.image."
        )


def _end(kind: Kind) -> None:
    for worker in kind.workers:
        ray.kill(worker.actor)
    kind.workers = []


def _start_fault(error: Exception, config: EnvironmentKindConfig) -> str:
    if isinstance(error, TimeoutError):
        return (
            f"its {config.workers} worker(s) did not start within {START_SECONDS:g} seconds; each needs {config.cpus:g} CPUs and "
            f"{config.gpus:g} GPUs from Ray."
        )
    return _describe(error)


def _describe(error: Exception) -> str:
    cause = error.cause if isinstance(error, CallFailed | RayTaskError) else error
    return first_line(cause) if isinstance(cause, EnvironmentFault | RequestError) else with_type(cause)
