"""Engines on Ray behind one face.

A trajectory stays on its engine, where its prefix is cached; a new one goes to the engine with the fewest requests in flight. An
engine that dies makes the trajectories that waited for it invalid, and is replaced by one with the newest weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rl.config import EngineConfig
from rl.engine import EngineFault, Generation, Sampling
from rl.vllm_engine import VllmEngine, environment_variables

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Replica:
    """One engine's actor; `ready` ends when it can serve, with an exception where it never will."""

    actor: Any
    ready: asyncio.Task[None]
    in_flight: int = 0
    trajectories: set[str] = field(default_factory=set)

    @property
    def failed(self) -> bool:
        return self.ready.done() and (self.ready.cancelled() or self.ready.exception() is not None)


class EnginePool:
    """An `Engine` made of engines. Everything runs in one event loop, that of `start`."""

    def __init__(self, config: EngineConfig, policy_path: str, version: int) -> None:
        self._config = config
        self._weights = (policy_path, version)
        self._replicas: list[_Replica] = []
        self._sticky: dict[str, _Replica] = {}
        self._replacements = 0

    @classmethod
    async def start(cls, config: EngineConfig, policy_path: str, version: int = 0) -> EnginePool:
        """Start `config.count` engines on the Ray that is running; returns when all can serve.

        Raises:
            EngineFault: where one does not start, or not within `start_timeout_seconds`.
        """
        pool = cls(config, policy_path, version)
        pool._replicas = [pool._launch() for _ in range(config.count)]
        try:
            async with asyncio.timeout(config.start_timeout_seconds):
                await asyncio.gather(*(replica.ready for replica in pool._replicas))
        except (RayError, TimeoutError) as error:
            await pool.shutdown()
            raise EngineFault(f"an engine did not start: {_one_line(error)}") from error
        return pool

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a trajectory on its engine. Raises `EngineFault` where that engine fails."""
        replica = self._route(request_id)
        replica.in_flight += 1
        try:
            await asyncio.shield(replica.ready)
            generation: Generation = await replica.actor.generate.remote(request_id, tuple(prompt_ids), sampling)
            return generation
        except RayError as error:
            if isinstance(error, RayActorError) or "EngineDeadError" in str(error):
                self._replace(replica)
            raise EngineFault(_one_line(error)) from error
        finally:
            replica.in_flight -= 1

    def release(self, request_id: str) -> None:
        """Forget where a trajectory was: it is over."""
        replica = self._sticky.pop(request_id, None)
        if replica is not None:
            replica.trajectories.discard(request_id)

    async def load_weights(self, path: str, version: int) -> None:
        """Load weights into all engines; those that are dead or still starting are replaced by ones that start with them."""
        self._weights = (path, version)
        await asyncio.gather(*(self._load(replica) for replica in list(self._replicas)))

    async def pause(self) -> None:
        """Pause all engines."""
        await self._all("pause")

    async def resume(self) -> None:
        """Resume all engines."""
        await self._all("resume")

    async def sleep(self) -> None:
        """Let all engines give back their memory, as far as they can."""
        await self._all("sleep")

    async def wake(self) -> None:
        """Wake all engines."""
        await self._all("wake")

    async def shutdown(self) -> None:
        """End all engines."""
        for replica in self._replicas:
            replica.ready.cancel()
        await asyncio.gather(*(self._close(replica.actor) for replica in self._replicas))
        self._replicas = []

    def _route(self, request_id: str) -> _Replica:
        replica = self._sticky.get(request_id)
        if replica is None:
            if not self._replicas:
                raise EngineFault("no engine is left")
            replica = min(self._replicas, key=lambda candidate: (candidate.in_flight, len(candidate.trajectories)))
            self._sticky[request_id] = replica
            replica.trajectories.add(request_id)
        return replica

    def _launch(self) -> _Replica:
        path, version = self._weights
        actor_class = ray.remote(VllmEngine).options(
            num_cpus=self._config.cpus,
            num_gpus=self._config.gpus,
            max_concurrency=10_000,
            runtime_env={"env_vars": environment_variables(self._config)},
        )
        actor = actor_class.remote(self._config, path, version)
        return _Replica(actor, asyncio.ensure_future(_start(actor)))

    def _replace(self, dead: _Replica) -> None:
        """Take a dead engine out, and start another in its place while replacements last."""
        if dead not in self._replicas:
            return
        self._replicas.remove(dead)
        for trajectory in dead.trajectories:
            self._sticky.pop(trajectory, None)
        ray.kill(dead.actor)
        if self._replacements < self._config.max_replacements:
            self._replacements += 1
            logger.warning("an engine died and is being replaced (%d of %d)", self._replacements, self._config.max_replacements)
            self._replicas.append(self._launch())

    async def _load(self, replica: _Replica) -> None:
        try:
            await asyncio.shield(replica.ready)
            await replica.actor.load_weights.remote(*self._weights)
        except RayActorError:
            self._replace(replica)

    async def _all(self, method: str) -> None:
        await asyncio.gather(*(getattr(replica.actor, method).remote() for replica in self._replicas))

    async def _close(self, actor: Any) -> None:
        """Let vLLM end its own processes before the actor goes; a dead one has nothing to end."""
        try:
            async with asyncio.timeout(10):
                await actor.close.remote()
        except (RayError, TimeoutError) as error:
            logger.debug("an engine did not close: %s", _one_line(error))
        ray.kill(actor)


async def _start(actor: Any) -> None:
    await actor.start.remote()


def _one_line(error: BaseException) -> str:
    cause = error.cause if isinstance(error, RayTaskError) else error
    lines = str(cause).strip().splitlines() or [""]
    return f"{type(cause).__name__}: {lines[0]}"
