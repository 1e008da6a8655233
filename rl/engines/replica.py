"""One engine of a pool: its Ray actor, placement and requests.

An engine with several workers gets a placement group, so that Ray reserves all or nothing. Otherwise two engines that start together could
each hold half of the resources they need.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl.content import PlacedImage
from rl.engines.base import EngineDead, EngineFault, EngineFigures, EngineState, Generation, Sampling
from rl.engines.config import EngineConfig
from rl.engines.vllm_engine import VllmEngine, environment_variables
from rl.env_pool.batched_actor import BatchedActorClient, CallFailed
from rl.policies.transfer import files_in, is_adapters, pieces, read_adapters
from warehouse.errors import RequestError, first_line, with_type

logger = logging.getLogger(__name__)

Weights = tuple[str, int]
"""Folder and version of weights: a policy, at its path on the engines' machines, or adapters, at their path on this machine."""


@dataclass(eq=False)
class Replica:
    """One engine's actor. `ready` completes once it serves the newest weights, or raises `EngineDead` if it fails to start."""

    name: str
    actor: Any
    client: BatchedActorClient
    group: PlacementGroup | None
    weights: Weights
    older: bool
    """Serves only requests for an older policy."""
    died: int
    """Number of engines that died in its slot before."""
    ready: asyncio.Task[None] = field(init=False)
    _whole: str = ""
    """Folder of its full policy, or of the base policy of its adapters."""
    may_start: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it may allocate its memory."""
    asleep: bool = False
    leaving: bool = False
    in_flight: int = 0
    requests: int = 0
    tokens: int = 0
    trajectories: set[str] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def serving(self) -> bool:
        """Started successfully."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    @property
    def load(self) -> tuple[bool, int, int]:
        """Routing key: serving engines first, then fewest requests, then fewest trajectories."""
        return not self.serving, self.in_flight, len(self.trajectories)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the engine; cancelling the await cancels the call.

        Raises:
            EngineDead: the actor or vLLM in it died.
            EngineFault: any other failure.
        """
        try:
            return await self.client.call(method, *arguments)
        except RayActorError as error:
            raise EngineDead(_reason(error)) from error
        except CallFailed as error:
            kind = EngineDead if isinstance(error.cause, EngineDead) else EngineFault
            raise kind(_reason(error.cause)) from error

    async def generate(
        self, request_id: str, prompt_ids: tuple[int, ...], sampling: Sampling, images: tuple[PlacedImage, ...] = ()
    ) -> Generation:
        """Generate one continuation once the engine is up. Raises as `call` does."""
        with self._in_flight():
            await asyncio.shield(self.ready)
            generation: Generation = await self.call("generate", request_id, prompt_ids, sampling, images)
        self.requests += 1
        self.tokens += len(generation.token_ids)
        return generation

    async def sampled(self, request_id: str, seen: int) -> tuple[int, ...]:
        """Ids of a running streamed request after the first `seen`, once there are any; none if it does not run. Raises as `call` does."""
        await asyncio.shield(self.ready)
        ids: tuple[int, ...] = await self.call("sampled", request_id, seen)
        return ids

    async def start(self) -> None:
        """Start with the initial weights. Raises as `call` does."""
        await self._send(self.weights[0])
        await self.call("start")
        self._whole = self.weights[0]

    async def load_weights(self, weights: Weights) -> None:
        """Load a policy from its folder, or send and load adapters. Raises as `call` does."""
        folder, version = weights
        if is_adapters(Path(folder)):
            await self._load_adapters(folder, version)
        else:
            await self._send(folder)
            await self.call("load_weights", folder, version)
            self._whole = folder
        self.weights = weights

    async def _load_adapters(self, folder: str, version: int) -> None:
        try:
            adapters = await asyncio.to_thread(read_adapters, Path(folder))
        except RequestError as error:
            raise EngineDead(f"{self.name} received no weights: {error}") from error
        if adapters.base != self._whole:
            await self._send(adapters.base)
        await self.call("load_adapters", adapters, version)
        self._whole = adapters.base

    async def _send(self, folder: str) -> None:
        """Send a policy's files if the engine's machine does not have them. Raises as `call` does."""
        files = await asyncio.to_thread(files_in, Path(folder))
        if files and await self.call("misses", folder, files):
            logger.info("%s cannot read %s; sending its %d bytes", self.name, folder, sum(file.size for file in files))
            parts = pieces(Path(folder), files)
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                await self.call("receive", *part)

    async def sleep(self) -> None:
        await self.call("sleep")
        self.asleep = True

    async def wake(self, newest: Weights) -> None:
        """Wake the engine; if it lost its weights, load `newest`. Raises as `call` does."""
        can = await self.call("wake")
        self.asleep = False
        if not can:
            await self.load_weights(newest)

    def figures(self) -> EngineFigures:
        state = EngineState.LEAVING if self.leaving else EngineState.SERVING if self.serving else EngineState.STARTING
        return EngineFigures(self.name, state, self.weights[1], self.in_flight, len(self.trajectories), self.requests, self.tokens)

    async def close(self) -> None:
        """Let vLLM end its own processes, then kill the actor."""
        try:
            async with asyncio.timeout(10):
                await self.actor.close.remote()
        except (RayError, TimeoutError) as error:
            logger.debug("engine %s did not close: %s", self.name, _reason(error))
        self.kill()
        await asyncio.wait([self.ready])

    def kill(self) -> None:
        """Kill the actor and free its resources; waiting requests raise `EngineDead`."""
        self.may_start.set()  # else its start would wait forever instead of finding the actor dead
        ray.kill(self.actor)
        if self.group is not None:
            remove_placement_group(self.group)

    @contextmanager
    def _in_flight(self) -> Iterator[None]:
        self.in_flight += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()


def create_replica(name: str, config: EngineConfig, weights: Weights, older: bool = False, died: int = 0) -> Replica:
    """Create an engine's actor, which Ray starts once resources are free; the pool sets `ready`."""
    group = engine_group(config)
    actor_class = ray.remote(VllmEngine).options(
        **engine_options(config, group), max_concurrency=10_000, runtime_env={"env_vars": environment_variables(config)}
    )
    actor = actor_class.remote(config, *weights)
    replica = Replica(name, actor, BatchedActorClient(actor), group, weights, older, died)
    replica.idle.set()
    return replica


def engine_group(config: EngineConfig) -> PlacementGroup | None:
    """Placement group of an engine with several workers, else None."""
    if config.tensor_parallel == 1:
        return None
    return placement_group([bundle.resources for bundle in config.bundles], strategy="PACK")


def engine_options(config: EngineConfig, group: PlacementGroup | None) -> dict[str, Any]:
    """Ray options of an engine's actor. If its workers are Ray actors, they hold the bundles instead."""
    if group is None:
        return {"num_cpus": config.cpus, "num_gpus": config.gpus}
    if config.workers == "ray":
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
        return {"num_cpus": 0, "num_gpus": 0, "scheduling_strategy": strategy}
    return {"num_cpus": config.cpus, "num_gpus": config.gpus, "scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0)}


def _reason(error: BaseException) -> str:
    return first_line(error) if isinstance(error, EngineFault) else with_type(error)
