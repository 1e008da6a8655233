"""Rollouts: requests in, trajectories out.

`Rollouts` owns engines and environments on Ray and an event loop in a thread of its own, so that the stages, which are plain
synchronous code, call it like a function. All trajectories of all calls run side by side.

Engines and learner take turns: `rollout`, then `pause` while the learner updates, `load_weights`, `resume`; a stream that is paused in
its middle goes on where it was. Or they run at once: `submit` gives trajectories as they end, and `load_weights` may come at any time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
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
from rl.placement import rollout_cpus
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
from warehouse.records import Document, Failure, StopReason, Task, Trajectory

logger = logging.getLogger(__name__)

T = TypeVar("T")
OnProgress = Callable[[int, int], None]


PROBE_TOKENS = 32
"""Tokens that an engine samples to show which weights it has."""


class Rollouts:
    """Engines and environments; made by `start`, or by `begin` and `open`, and ended by `close` or by leaving a `with` block."""

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
        self._ray = RayRuntime(config.ray, rollout_cpus(config))

    @classmethod
    def start(cls, config: RolloutConfig, policy_path: Path, documents: Iterable[Document] = (), version: int = 0) -> Rollouts:
        """Start engines with the policy in folder `policy_path`, and environments over `documents`.

        Raises:
            RequestError: where the policy is no folder, does not go with the dialect, or cannot take so long a context, or where this
                machine cannot transfer weights as it is configured to.
            EngineFault: where an engine does not start.
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
        """Have engines start and return at once: before anything is rolled out, `open` is to be called. Raises RequestError as `start`."""
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
        """Wait for the engines, and have environments over `documents`. Raises as `EnginePool.up` does."""
        environments = EnvironmentPool(self.config.environments, build_indexes(documents, self.config.search))
        self.wait(self.pool.up())
        self._environments = environments
        if self.config.engine.pressure is not None:
            asyncio.run_coroutine_threadsafe(self._follow(self.config.engine.pressure.every_seconds), self.event_loop)

    @property
    def is_open(self) -> bool:
        """Whether `open` has been called, and the engines are up."""
        return self._environments is not None

    def rollout(self, requests: Sequence[RolloutRequest], on_progress: OnProgress | None = None) -> list[Trajectory]:
        """Run a trajectory for each request, and return them in the order of the requests.

        `on_progress(done, total)` is called after each trajectory. Trajectories that hit a fault come back as invalid, with the error.

        Raises:
            RequestError: an environment, a loop or a dialect that a task asks for cannot be had; nothing has run then.
            CircuitOpen: too many of an environment's trajectories or a tool's calls were faults; what was under way is lost.
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
        """Begin a trajectory for each request and return at once; the stream gives them as they end, the quick ones first.

        Several streams may be open at once: at most `concurrency` trajectories of all of them run at a time.

        Raises:
            RequestError: an environment, a loop or a dialect that a task asks for cannot be had.
        """
        self.wait(self._check(requests))
        stream = TrajectoryStream(self.event_loop, requests, self._one)
        self._streams.add(stream)
        return stream

    def extend(self, stream: TrajectoryStream, requests: Sequence[RolloutRequest]) -> None:
        """Begin further trajectories, which the stream gives as they end. Raises as `submit` does."""
        self.wait(self._check(requests))
        stream.extend(requests)

    def load_weights(self, path: Path, version: int) -> None:
        """Load the weights in folder `path` into all engines; what they sample from now on bears `version`."""
        self.wait(self.pool.load_weights(str(Path(path).resolve()), version))

    def probe(self, question: str, temperature: float) -> list[WeightProbe]:
        """What each engine continues the prompt of a question with, after the last update of its weights."""
        return self.wait(self.pool.probe(self.dialect.prompt_ids(question), PROBE_TOKENS, temperature))

    @property
    def weight_sync(self) -> WeightSyncHandle:
        """How a learner sends weights to the engines, where `engine.transfer` is not `files`."""
        return WeightSyncHandle(self._begin_transfer, self._step_transfer, self._record_weights)

    def pause(self) -> None:
        """Stop sampling while the learner updates, and give back what `engine.sleep_level` says; requests under way wait."""
        self.wait(self.pool.sleep())

    def resume(self) -> None:
        """Take the engines' memory back, and go on sampling with the weights that were loaded meanwhile."""
        self.wait(self.pool.wake())

    def admit(self, most: int | None) -> None:
        """From now on, run at most so many trajectories side by side, and never more than `concurrency`; None is that alone.

        0 holds all new ones back. Those under way end. May be called from any thread.
        """
        self.event_loop.call_soon_threadsafe(self._admission.admit, most)

    def add_engine(self) -> str:
        """Start one more engine, while trajectories go on; returns its name when it serves. Raises as `EnginePool.add_engine` does."""
        return self.wait(self.pool.add_engine())

    def remove_engine(self, name: str, drain: bool = True) -> None:
        """Take an engine out, while trajectories go on. Raises as `EnginePool.remove_engine` does."""
        self.wait(self.pool.remove_engine(name, drain))

    def figures(self) -> PoolFigures:
        """Requests, tokens and states of the engines."""
        return self.pool.figures()

    def take_concurrency_figures(self) -> dict[str, float]:
        """Concurrency and the engines' pressure since this was last asked, by their names; nothing where it does not follow them."""
        return self.wait(self._taken_figures())

    def environment_figures(self) -> EnvironmentPoolFigures:
        """Trajectories, workers and faults of environments and tools."""
        waiting = sum(map(len, list(self._streams)))
        if self._environments is None:
            return EnvironmentPoolFigures(waiting, (), ())
        return EnvironmentPoolFigures(waiting, self._environments.figures(), self._environments.breaker.figures())

    def drain_retries(self) -> list[Failure]:
        """The trajectories that were restarted since the last call, each with the fault that had ended it: for the lake's `failures`."""
        return [self._retries.popleft() for _ in range(len(self._retries))]

    def close(self) -> None:
        """End streams, engines, environments, Ray if it was started here, and the thread. May be called twice."""
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
        """The dialect of tasks that choose none."""
        return self._loops.dialect(self.config.dialect)

    @property
    def pool(self) -> EnginePool:
        """The engines; call them in their event loop, by `wait`."""
        if self._engines is None:
            raise RuntimeError("rollouts are not started: use Rollouts.start")
        return self._engines

    @property
    def environments(self) -> EnvironmentPool:
        """The environments; call them in the event loop of `pool`, by `wait`."""
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
            except EngineFault as error:  # the next look may do better
                logger.warning("the engines' pressure is not known: %s", error)

    async def _taken_figures(self) -> dict[str, float]:
        return self._admission.take_figures()

    async def _check(self, requests: Sequence[RolloutRequest]) -> None:
        for name in sorted({request.task.environment for request in requests}):
            await self.environments.open(name)
        self._loops.check(request.task for request in requests)

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
        """A trajectory, and the environment that it was in."""
        self.environments.breaker.check()
        environment = self.environments.client(request.task.environment, request.trajectory_id)
        try:
            trajectory = await self._loops.loop_for(request.task, self.pool).run(request, environment)
        finally:
            self.pool.release(request.trajectory_id)
            await environment.close()
        self.environments.breaker.check()
        return trajectory, environment

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the event loop's thread."""
        return asyncio.run_coroutine_threadsafe(work, self.event_loop).result()


async def _end_tasks() -> None:
    """End what still waits in this event loop: the collectors of actors that are gone."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def check_context(config: RolloutConfig, policy_path: Path) -> None:
    """Check that the policy is there, and that it takes a context as long as trajectories may use.

    Raises:
        RequestError: where it is not, or does not.
    """
    if not (Path(policy_path) / "config.json").is_file():
        raise RequestError(f"{policy_path} holds no policy: there is no config.json in it.")
    check_positions(config, config.engine.positions(Path(policy_path)), f"the policy in {policy_path}")


def check_positions(config: RolloutConfig, positions: int | None, policy: str) -> None:
    """Check the engine's and the trajectories' longest context against the `positions` of a policy. Raises RequestError."""
    asked, context = config.engine.max_model_len, config.limits.max_context_tokens
    if positions is not None and asked is not None and asked > positions:
        raise RequestError(f"rollout.engine.max_model_len = {asked} is more than the {positions} positions of {policy}; lower it.")
    longest = positions if asked is None else asked
    if longest is not None and context > longest:
        raise RequestError(
            f"rollout.limits.max_context_tokens = {context} is more than the {longest} tokens that {policy} can take; lower it."
        )


class TrajectoryStream(Iterator[Trajectory]):
    """An iterator over the trajectories of some requests, in the order in which they end.

    They run in `loop`, the event loop of another thread, whether anybody reads or not. What is raised for one of them
    (`CircuitOpen`, or a defect, since faults are outcomes) ends the others and is raised here.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Sequence[RolloutRequest],
        run: Callable[[RolloutRequest], Awaitable[Trajectory]],
    ) -> None:
        self._loop = loop
        self._run = run
        self._left = 0
        self._ended: SimpleQueue[Trajectory | BaseException | None] = SimpleQueue()
        self._work: list[Future[None]] = []
        self.extend(requests)

    def extend(self, requests: Sequence[RolloutRequest]) -> None:
        """Begin trajectories for further requests."""
        self._left += len(requests)
        self._work = [work for work in self._work if not work.done()]
        self._work.append(asyncio.run_coroutine_threadsafe(self._run_all(requests), self._loop))

    @property
    def ready(self) -> bool:
        """Whether the next can be read without waiting."""
        return not self._ended.empty()

    def __len__(self) -> int:
        """Trajectories that have not been read yet."""
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
        """Stop those under way and drop what was not read; a reader gets no more. Does nothing where all have been read."""
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
    {"react": "rl.rollouts.agent_loop:AgentLoop", "langgraph": "rl.rollouts.langgraph_loop:LangGraphLoop"},
    "agent_flywheel.loops",
    "rollout.loops",
    arguments=("engine", "dialect", "limits"),
)


class AgentLoops:
    """The agent loop that each task asks for: one for each pair of loop and dialect, on one engine; each dialect is opened once.

    The configuration names a loop as any code of one's own is named (see `warehouse/plugins.py`); a task may name those of `LOOPS`, what
    is installed, and what the configuration lists under `rollout.loops`. `vision` is what the policy makes of images, where it takes any.
    """

    def __init__(self, config: RolloutConfig, tokenizer: PreTrainedTokenizerBase, vision: Vision | None = None) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._vision = vision
        self._dialects: dict[str, Dialect] = {}
        self._loops: dict[tuple[str, str], Loop] = {}

    def check(self, tasks: Iterable[Task]) -> None:
        """Check that every loop and dialect is there before anything runs.

        Raises:
            RequestError: where one is not, or where the policy's tokenizer does not go with it.
        """
        for task in tasks:
            choice = choice_of(task)
            self._factory(choice.loop)
            self.dialect(choice.dialect or self._config.dialect)

    def dialect(self, name: str) -> Dialect:
        """The dialect called `name`. Raises as `open_dialect` does."""
        if name not in self._dialects:
            self._dialects[name] = open_dialect(name, self._config.dialects, self._tokenizer, self._vision)
        return self._dialects[name]

    def loop_for(self, task: Task, engine: Generator) -> Loop:
        """The loop that `task` asks for, over `engine`."""
        choice = choice_of(task)
        key = (choice.loop or self._config.loop, choice.dialect or self._config.dialect)
        if key not in self._loops:
            self._loops[key] = self._factory(choice.loop)(engine, self.dialect(key[1]), self._config.limits)
        return self._loops[key]

    def _factory(self, chosen: str | None) -> LoopFactory:
        """The loop that a task chose, else that of the configuration."""
        listed = self._config.loops
        found = LOOPS.load(listed.get(self._config.loop, self._config.loop)) if chosen is None else LOOPS.load_recorded(chosen, listed)
        return cast(LoopFactory, found)
