"""Rollouts: take requests and return trajectories.

`Rollouts` owns engines and environments on Ray and an event loop in its own thread, so that synchronous stages call it like a function. The
trajectories of all calls run concurrently. Engines and learner alternate (`rollout`, `pause`, `load_weights`, `resume`; a paused stream
continues where it stopped) or run concurrently (`submit` yields trajectories as they end; `load_weights` may be called at any time).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar, cast
from weakref import WeakSet

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl.engines.base import EngineFault, Generator, PoolFigures, WeightProbe
from rl.engines.pool import EnginePool
from rl.engines.weight_sync import PendingTransfer, Shapes, WeightSyncHandle, check_device
from rl.env_pool.circuit_breaker import CircuitOpen, EnvironmentPoolFigures
from rl.env_pool.pool import EnvironmentPool, PooledEnvironment
from rl.policies.vision import Vision, load_vision
from rl.ray_runtime import RayRuntime
from rl.renderers.base import Dialect
from rl.renderers.registry import open_dialect
from rl.retrieval.indexes import build_indexes
from rl.rollouts.admission import Admission
from rl.rollouts.agent_loop import Loop, LoopFactory, RolloutRequest, choice_of
from rl.rollouts.config import RolloutConfig
from warehouse.errors import RequestError
from warehouse.plugins import Registry
from warehouse.records import OFFERED, Document, Failure, StopReason, Task, Trajectory

logger = logging.getLogger(__name__)

T = TypeVar("T")
OnProgress = Callable[[int, int], None]


PROBE_TOKENS = 32
"""Tokens that an engine samples for a weight probe."""


class Rollouts:
    """Engines and environments; create with `start`, or `begin` and `open`; end with `close` or a `with` block."""

    def __init__(self, config: RolloutConfig, loops: AgentLoops) -> None:
        self.config = config
        self._loops = loops
        self._streams: WeakSet[TrajectoryStream] = WeakSet()
        self._admission = Admission(config.concurrency, config.engine.pressure)
        self._retries: deque[Failure] = deque()
        self._engines: EnginePool | None = None
        self._environments: EnvironmentPool | None = None
        self.event_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.event_loop.run_forever, name="rollouts", daemon=True)
        self._thread.start()
        self._ray = RayRuntime(config.ray, config.reserved_cpus)

    @classmethod
    def start(cls, config: RolloutConfig, policy_path: Path, documents: Iterable[Document] = (), version: int = 0) -> Rollouts:
        """Start engines with the policy in folder `policy_path`, and environments over `documents`.

        Raises:
            RequestError: no policy there, it does not fit dialect or context, or this machine does not support the weight transfer.
            EngineFault: an engine does not start.
        """
        rollouts = cls.begin(config, policy_path, version)
        try:
            rollouts.open(documents)
        except BaseException:
            rollouts.close()
            raise
        return rollouts

    @classmethod
    def begin(cls, config: RolloutConfig, policy_path: Path, version: int = 0) -> Rollouts:
        """Start engines without waiting; call `open` before rolling out. Raises RequestError as `start` does."""
        check_context(config, policy_path)
        if config.ray.address is None:
            check_device(config.engine.transfer)
        loops = AgentLoops(
            config,
            AutoTokenizer.from_pretrained(policy_path, local_files_only=True, trust_remote_code=False),
            load_vision(Path(policy_path)),
        )
        loops.dialect(config.dialect)
        rollouts = cls(config, loops)
        try:
            rollouts._engines = rollouts.wait(EnginePool.begin(config.engine, str(Path(policy_path).resolve()), version))
        except BaseException:
            rollouts.close()
            raise
        return rollouts

    def open(self, documents: Iterable[Document] = ()) -> None:
        """Wait for the engines and open environments over `documents`. Raises as `EnginePool.up` does."""
        environments = EnvironmentPool(self.config.environments, build_indexes(documents, self.config.search))
        self.wait(self.pool.up())
        self._environments = environments
        if self.config.engine.pressure is not None:
            asyncio.run_coroutine_threadsafe(self._follow(self.config.engine.pressure.every_seconds), self.event_loop)

    @property
    def is_open(self) -> bool:
        return self._environments is not None

    def rollout(self, requests: Sequence[RolloutRequest], on_progress: OnProgress | None = None) -> list[Trajectory]:
        """Run one trajectory per request and return them in order; faults are returned as invalid trajectories.

        Args:
            on_progress: called with (done, total) after each trajectory.

        Raises:
            RequestError: an environment, loop or dialect of a task is unavailable; nothing has run.
            CircuitOpen: too many faults of an environment or tool; running trajectories are lost.
        """
        stream, found = self.submit(requests), {}
        try:
            for trajectory in stream:
                found[trajectory.id] = trajectory
                if on_progress is not None:
                    on_progress(len(found), len(requests))
        finally:
            stream.cancel()
        return [found[request.trajectory_id] for request in requests]

    def submit(self, requests: Sequence[RolloutRequest]) -> TrajectoryStream:
        """Start one trajectory per request; the stream yields them as they end. At most `concurrency` run at a time, over all streams.

        Raises:
            RequestError: an environment, loop or dialect of a task is unavailable.
        """
        self.wait(self._check(requests))
        stream = TrajectoryStream(self.event_loop, requests, self._one)
        self._streams.add(stream)
        return stream

    def extend(self, stream: TrajectoryStream, requests: Sequence[RolloutRequest]) -> None:
        """Add requests to a stream. Raises as `submit` does."""
        self.wait(self._check(requests))
        stream.extend(requests)

    def load_weights(self, path: Path, version: int) -> None:
        self.wait(self.pool.load_weights(str(Path(path).resolve()), version))

    def probe(self, question: str, temperature: float) -> list[WeightProbe]:
        """Let each engine generate for a question with its current weights."""
        return self.wait(self.pool.probe(self.dialect.prompt_ids(question), PROBE_TOKENS, temperature))

    @property
    def weight_sync(self) -> WeightSyncHandle:
        """Callbacks with which a learner sends weights to the engines, unless `engine.transfer` is `files`."""
        return WeightSyncHandle(self._begin_transfer, self._step_transfer, self._record_weights)

    def pause(self) -> None:
        """Stop sampling during a learner update, and free memory according to `engine.sleep_level`; running requests wait."""
        self.wait(self.pool.sleep())

    def resume(self) -> None:
        """Reallocate memory and continue sampling with the loaded weights."""
        self.wait(self.pool.wake())

    def admit(self, most: int | None) -> None:
        """Limit concurrent trajectories to `most`, up to `concurrency`; None removes the limit, 0 holds back new ones. Thread-safe."""
        self.event_loop.call_soon_threadsafe(self._admission.admit, most)

    def add_engine(self) -> str:
        """Start another engine during rollouts; return its name once it serves. Raises as `EnginePool.add_engine` does."""
        return self.wait(self.pool.add_engine())

    def remove_engine(self, name: str, drain: bool = True) -> None:
        """Remove an engine during rollouts. Raises as `EnginePool.remove_engine` does."""
        self.wait(self.pool.remove_engine(name, drain))

    def figures(self) -> PoolFigures:
        return self.pool.figures()

    def take_concurrency_metrics(self) -> dict[str, float]:
        """Concurrency and engine pressure since the last call; empty without adaptive concurrency."""
        return self.wait(self._taken_metrics())

    def environment_figures(self) -> EnvironmentPoolFigures:
        waiting = sum(map(len, list(self._streams)))
        if self._environments is None:
            return EnvironmentPoolFigures(waiting, (), ())
        return EnvironmentPoolFigures(waiting, self._environments.figures(), self._environments.breaker.figures())

    def drain_retries(self) -> list[Failure]:
        """Trajectories restarted since the last call, each with its fault, as `failures` for the lake."""
        return [self._retries.popleft() for _ in range(len(self._retries))]

    def close(self) -> None:
        """Stop streams, engines, environments, a Ray started here, and the thread. Idempotent."""
        if self.event_loop.is_closed():
            return
        for stream in list(self._streams):
            stream.cancel()
        if self._engines is not None:
            self.wait(self._engines.shutdown())
        if self._environments is not None:
            self._environments.close()
        self.wait(_end_tasks())
        self._ray.close()
        self.event_loop.call_soon_threadsafe(self.event_loop.stop)
        self._thread.join()
        self.event_loop.close()

    def __enter__(self) -> Rollouts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def dialect(self) -> Dialect:
        """Dialect of tasks that choose none."""
        return self._loops.dialect(self.config.dialect)

    @property
    def pool(self) -> EnginePool:
        """The engines; call their methods with `wait`."""
        if self._engines is None:
            raise RuntimeError("rollouts are not started: use Rollouts.start")
        return self._engines

    @property
    def environments(self) -> EnvironmentPool:
        """The environments; call their methods with `wait`."""
        if self._environments is None:
            raise RuntimeError("rollouts are not open: use Rollouts.start, or open after begin")
        return self._environments

    def _begin_transfer(self, shapes: Shapes, path: Path, version: int) -> PendingTransfer:
        return self.wait(self.pool.begin_transfer(shapes, str(Path(path).resolve()), version))

    def _step_transfer(self, step: str, info: dict[str, Any]) -> str | None:
        try:
            self.wait(self.pool.step_transfer(step, info))
        except EngineFault as error:
            return str(error)
        return None

    def _record_weights(self, path: Path, version: int) -> None:
        self.wait(self.pool.record(str(Path(path).resolve()), version))

    async def _follow(self, every_seconds: float) -> None:
        while True:
            await asyncio.sleep(every_seconds)
            try:
                self._admission.follow(await self.pool.pressures())
            except EngineFault as error:  # retry at the next interval
                logger.warning("the load of the engines could not be read: %s", error)

    async def _taken_metrics(self) -> dict[str, float]:
        return self._admission.take_metrics()

    async def _check(self, requests: Sequence[RolloutRequest]) -> None:
        for name in sorted({request.task.environment for request in requests}):
            await self.environments.open(name)
        self._loops.check((request.task for request in requests), self.pool)

    async def _one(self, request: RolloutRequest) -> Trajectory:
        async with self._admission.places:
            suspected = False
            while True:
                trajectory, environment = await self._attempt(request)
                if not environment.lost or trajectory.stop_reason is not StopReason.FAULT or (suspected and environment.suspect):
                    return trajectory
                suspected |= environment.suspect
                self._retries.append(Failure(request.stage, "retried", str(trajectory.error), {"trajectory": trajectory.id}))

    async def _attempt(self, request: RolloutRequest) -> tuple[Trajectory, PooledEnvironment]:
        self.environments.breaker.check()
        environment = self.environments.client(request.task.environment, request.trajectory_id)
        try:
            trajectory = await self._loops.loop_for(request.task, self.pool).run(request, environment)
        finally:
            self.pool.release(request.trajectory_id)
            await environment.close()
        self.environments.breaker.check()
        chosen = choice_of(request.task).tools
        offered = [name for name in environment.tools if chosen is None or name in chosen]
        return replace(trajectory, provenance={**trajectory.provenance, OFFERED: offered}), environment

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop's thread and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.event_loop).result()


async def _end_tasks() -> None:
    """Cancel what still waits in this event loop, such as result collectors of dead actors."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def check_context(config: RolloutConfig, policy_path: Path) -> None:
    """Check that the policy exists and supports the context length of trajectories. Raises RequestError."""
    if not (Path(policy_path) / "config.json").is_file():
        raise RequestError(f"{policy_path} does not contain a policy: there is no config.json in it.")
    check_positions(config, config.engine.positions(Path(policy_path)), f"the policy in {policy_path}")


def check_positions(config: RolloutConfig, positions: int | None, policy: str) -> None:
    """Check the context lengths of engine and trajectories against a policy's `positions`. Raises RequestError."""
    asked, context = config.engine.max_model_len, config.limits.max_context_tokens
    if positions is not None and asked is not None and asked > positions:
        raise RequestError(f"rollout.engine.max_model_len = {asked} is more than the {positions} positions of {policy}; lower it.")
    longest = positions if asked is None else asked
    if longest is not None and context > longest:
        raise RequestError(
            f"rollout.limits.max_context_tokens = {context} is more than the {longest} tokens that {policy} can take; lower it."
        )


class TrajectoryStream(Iterator[Trajectory]):
    """Iterator over trajectories in the order in which they end.

    They run in the event loop of another thread, whether read or not. An exception (`CircuitOpen` or a bug; faults are outcomes) cancels
    the others and is raised here.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, requests: Sequence[RolloutRequest], run: Callable[[RolloutRequest], Awaitable[Trajectory]]
    ) -> None:
        self._loop = loop
        self._run = run
        self._left = 0
        self._ended: SimpleQueue[Trajectory | BaseException | None] = SimpleQueue()
        self._work: list[Future[None]] = []
        self.extend(requests)

    def extend(self, requests: Sequence[RolloutRequest]) -> None:
        self._left += len(requests)
        self._work = [work for work in self._work if not work.done()]
        self._work.append(asyncio.run_coroutine_threadsafe(self._run_all(requests), self._loop))

    @property
    def ready(self) -> bool:
        """Whether the next trajectory can be read without waiting."""
        return not self._ended.empty()

    def __len__(self) -> int:
        """Number of unread trajectories."""
        return self._left

    def __next__(self) -> Trajectory:
        if not self._left:
            raise StopIteration
        ended = self._ended.get()
        if ended is None:
            raise StopIteration
        if isinstance(ended, BaseException):
            self._left = 0
            raise ended
        self._left -= 1
        return ended

    def cancel(self) -> None:
        """Cancel running trajectories and drop unread ones."""
        self._left = 0
        for work in self._work:
            work.cancel()
        self._ended.put(None)

    async def _run_all(self, requests: Sequence[RolloutRequest]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(self._run_one(request))
        except BaseExceptionGroup as defects:
            opened = defects.subgroup(CircuitOpen)
            self._ended.put(defects if opened is None else opened.exceptions[0])

    async def _run_one(self, request: RolloutRequest) -> None:
        self._ended.put(await self._run(request))


LOOPS = Registry(
    "agent loop",
    {
        "react": "rl.rollouts.agent_loop:AgentLoop",
        "langgraph": "rl.serving.langgraph_loop:LangGraphLoop",
        "harness": "rl.serving.harness_loop:HarnessLoop",
    },
    "agent_flywheel.loops",
    "rollout.loops",
    arguments=("engine", "dialect", "limits"),
)


class AgentLoops:
    """Agent loops by task, one per combination of loop and dialect.

    The configuration may name a loop by an import path; a task may name those in `LOOPS`, installed ones, and `rollout.loops`.
    """

    def __init__(self, config: RolloutConfig, tokenizer: PreTrainedTokenizerBase, vision: Vision | None = None) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._vision = vision
        self._dialects: dict[str, Dialect] = {}
        self._loops: dict[tuple[str, str], Loop] = {}

    def check(self, tasks: Iterable[Task], engine: Generator | None = None) -> None:
        """Check that loops and dialects of `tasks` are available and, with an `engine`, fit each other. Raises RequestError."""
        for task in tasks:
            choice = choice_of(task)
            self._factory(choice.loop)
            self.dialect(choice.dialect or self._config.dialect)
            if engine is not None:
                self.loop_for(task, engine)

    def dialect(self, name: str) -> Dialect:
        """The dialect `name`, opened once. Raises as `open_dialect` does."""
        if name not in self._dialects:
            self._dialects[name] = open_dialect(name, self._config.dialects, self._tokenizer, self._vision)
        return self._dialects[name]

    def loop_for(self, task: Task, engine: Generator) -> Loop:
        choice = choice_of(task)
        key = (choice.loop or self._config.loop, choice.dialect or self._config.dialect)
        if key not in self._loops:
            more = (self._config.harness,) if key[0] == "harness" else ()
            self._loops[key] = self._factory(choice.loop)(engine, self.dialect(key[1]), self._config.limits, *more)
        return self._loops[key]

    def _factory(self, chosen: str | None) -> LoopFactory:
        listed = self._config.loops
        found = LOOPS.load(listed.get(self._config.loop, self._config.loop)) if chosen is None else LOOPS.load_recorded(chosen, listed)
        return cast(LoopFactory, found)
