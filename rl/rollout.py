"""Rollouts: requests in, trajectories out.

`Rollouts` owns engines and environments on Ray and an event loop in a thread of its own, so that the stages, which are plain
synchronous code, call it like a function. All trajectories of a call run side by side.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from transformers import AutoTokenizer

from rl.agent_loop import RolloutRequest
from rl.config import RolloutConfig
from rl.engine_pool import EnginePool
from rl.environment_pool import EnvironmentPool
from rl.health import UnhealthyError
from rl.indexes import build_index
from rl.loops import AgentLoops
from rl.ray_runtime import RayRuntime
from rl.search import Index
from warehouse.errors import RequestError
from warehouse.records import Document, Trajectory

__all__ = ["RolloutConfig", "RolloutRequest", "Rollouts"]

T = TypeVar("T")
OnProgress = Callable[[int, int], None]


class Rollouts:
    """Engines and environments that are up; made by `start`, ended by `close` or by leaving a `with` block."""

    def __init__(self, config: RolloutConfig, loops: AgentLoops, index: Index | None) -> None:
        self._config = config
        self._loops = loops
        self._engines: EnginePool | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollouts", daemon=True)
        self._thread.start()
        engine, environments = config.engine, config.environments
        cpus = engine.count * engine.cpus + environments.reserved_cpus
        self._ray = RayRuntime(config.ray, cpus, engine.count * engine.gpus + environments.reserved_gpus)
        self._environments = EnvironmentPool(environments, index)

    @classmethod
    def start(cls, config: RolloutConfig, policy_path: Path, documents: Iterable[Document] = (), version: int = 0) -> Rollouts:
        """Start engines with the policy in folder `policy_path`, and environments over `documents`.

        Raises:
            RequestError: where the policy is no folder, does not go with the dialect, or cannot take so long a context.
            EngineFault: where an engine does not start.
        """
        _check_context(config, policy_path)
        loops = AgentLoops(config, AutoTokenizer.from_pretrained(policy_path, local_files_only=True))
        loops.dialect(config.dialect)
        documents = list(documents)
        rollouts = cls(config, loops, build_index(documents, config.search) if documents else None)
        try:
            rollouts._engines = rollouts._wait(EnginePool.start(config.engine, str(Path(policy_path).resolve()), version))
        except BaseException:
            rollouts.close()
            raise
        return rollouts

    def rollout(self, requests: Sequence[RolloutRequest], on_progress: OnProgress | None = None) -> list[Trajectory]:
        """Run a trajectory for each request, and return them in the order of the requests.

        `on_progress(done, total)` is called from another thread after each trajectory. Trajectories that hit a fault come back
        as invalid, with the error.

        Raises:
            RequestError: where an environment cannot be made, before anything runs.
            UnhealthyError: where too many of an environment's trajectories or a tool's calls were faults; what was under way is lost.
        """
        return self._wait(self._rollout(requests, on_progress))

    def load_weights(self, path: Path, version: int) -> None:
        """Load the weights in folder `path` into all engines; what they sample from now on bears `version`."""
        self._wait(self._pool.load_weights(str(Path(path).resolve()), version))

    def pause(self) -> None:
        """Let the engines' memory go while the learner has its turn, where the configuration's `sleep_mode` is on."""
        self._wait(self._pool.sleep())

    def resume(self) -> None:
        """Take the engines' memory back."""
        self._wait(self._pool.wake())

    def close(self) -> None:
        """End engines, environments, Ray if it was started here, and the thread. May be called twice."""
        if self._loop.is_closed():
            return
        if self._engines is not None:
            self._wait(self._engines.shutdown())
        self._environments.close()
        self._ray.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Rollouts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def _pool(self) -> EnginePool:
        if self._engines is None:
            raise RuntimeError("rollouts are not started: use Rollouts.start")
        return self._engines

    async def _rollout(self, requests: Sequence[RolloutRequest], on_progress: OnProgress | None) -> list[Trajectory]:
        for name in sorted({request.task.environment for request in requests}):
            await self._environments.open(name)
        self._loops.check(request.task for request in requests)
        places = asyncio.Semaphore(self._config.concurrency)
        progress = _Counter(len(requests), on_progress)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(request, places, progress)) for request in requests]
        except* UnhealthyError as errors:
            raise UnhealthyError(*errors.exceptions[0].args) from None
        return [task.result() for task in tasks]

    async def _one(self, request: RolloutRequest, places: asyncio.Semaphore, progress: _Counter) -> Trajectory:
        async with places:
            self._environments.health.check()
            environment = self._environments.client(request.task.environment, request.trajectory_id)
            try:
                trajectory = await self._loops.loop_for(request.task, self._pool).run(request, environment)
            finally:
                await environment.close()
                self._pool.release(request.trajectory_id)
        self._environments.health.check()
        progress.count()
        return trajectory

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the event loop's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Counter:
    """Counts what is done, and tells."""

    def __init__(self, total: int, tell: OnProgress | None) -> None:
        self._done, self._total, self._tell = 0, total, tell

    def count(self) -> None:
        self._done += 1
        if self._tell is not None:
            self._tell(self._done, self._total)


def _check_context(config: RolloutConfig, policy_path: Path) -> None:
    """The context that trajectories may use must be one that the engine takes."""
    path = Path(policy_path) / "config.json"
    if not path.is_file():
        raise RequestError(f"{policy_path} holds no policy: there is no config.json in it.")
    longest = config.engine.max_model_len or json.loads(path.read_text()).get("max_position_embeddings")
    if longest is not None and config.limits.max_context_tokens > longest:
        raise RequestError(
            f"max_context_tokens = {config.limits.max_context_tokens} is more than the {longest} tokens "
            f"that the policy in {policy_path} can take; lower it."
        )
