"""The learner as a group of Ray actors, each with a `LocalLearner`, joined by gloo on CPUs or NCCL on GPUs.

Each method runs on all workers and returns the main worker's result. Workers may be on other machines with the same file system. While a
method runs, the main worker may call registered functions of the starting process. A dead worker ends the group; training resumes from its
checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.queue import Empty, Queue
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl.engines.weight_sync import WeightSyncHandle
from rl.learner.base import Encoding, EngineWeights, Scores, Update
from rl.learner.batches import Row
from rl.learner.config import LearnerConfig, ReinforceConfig
from rl.ray_runtime import RayConfig, RayRuntime
from rl.worker_death import worker_died

T = TypeVar("T")

POLL_SECONDS = 0.05
"""Seconds between checks of the starting process for calls by the main worker."""
COLLECTIVE_SECONDS = 6 * 3600
"""Timeout of collectives in seconds; workers wait for the main one, which waits for a step's trajectories."""


@dataclass(frozen=True, slots=True)
class Starter:
    """Proxy of the starting process in workers; on workers other than the main one calls return None."""

    requests: Queue
    answers: Queue
    is_main: bool = True

    def function(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        if not self.is_main:
            return None
        self.requests.put((name, arguments))
        answered, answer = self.answers.get()
        if not answered:
            raise RuntimeError(f"the process that started the learner failed in {name}")
        return answer


class GroupWorker:
    """One process of the group; subclasses add the methods to call."""

    starter: Starter

    def address(self) -> tuple[str, int]:
        """Host and free port for the group's rendezvous."""
        from vllm.utils.network_utils import get_open_port

        return ray.util.get_node_ip_address(), get_open_port()  # type: ignore[no-untyped-call]

    def join(self, rank: int, learner: LearnerConfig, address: tuple[str, int], starter: Starter) -> None:
        """Join the group. A single worker joins none, because accelerate would wrap the model even in a group of one."""
        self.starter = Starter(starter.requests, starter.answers, is_main=rank == 0)
        if learner.workers == 1:
            return
        import torch.distributed

        host, port = address
        world = {"RANK": rank, "WORLD_SIZE": learner.workers, "LOCAL_RANK": 0, "MASTER_ADDR": host, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in world.items()})
        torch.distributed.init_process_group("nccl" if learner.gpus else "gloo", timeout=timedelta(seconds=COLLECTIVE_SECONDS))


class WorkerGroup:
    def __init__(
        self,
        kind: type[GroupWorker],
        learner: LearnerConfig,
        ray_config: RayConfig | None = None,
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        """Start workers of class `kind`.

        Args:
            ray_config: how to connect to Ray if it is not running; None: start it locally.
            functions: functions of this process that the main worker may call.

        Raises:
            WorkerDied: a worker died.
        """
        self._runtime = RayRuntime(ray_config or RayConfig(), learner.workers * learner.cpus)
        self._functions = functions or {}
        self._starter = Starter(Queue(actor_options={"num_cpus": 0}), Queue(actor_options={"num_cpus": 0}))
        self._placement = learner_group(learner)
        actor = ray.remote(kind).options(
            num_cpus=learner.cpus,
            num_gpus=learner.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._placement),
            runtime_env={"env_vars": {"PYTHONSAFEPATH": "1"}},
        )
        self._workers: list[Any] = [actor.remote() for _ in range(learner.workers)]
        try:
            address = self._wait([self._workers[0].address.remote()])
            self._wait([worker.join.remote(rank, learner, address, self._starter) for rank, worker in enumerate(self._workers)])
        except BaseException:
            self.close()
            raise

    def call(self, verb: str, *arguments: Any) -> Any:
        """Call `verb` on all workers and return the main worker's result. Raises what a worker or function raised, or WorkerDied."""
        return self._wait([getattr(worker, verb).remote(*arguments) for worker in self._workers])

    def close(self) -> None:
        for worker in self._workers:
            ray.kill(worker)
        remove_placement_group(self._placement)
        self._runtime.close()

    def _wait(self, answers: list[Any]) -> Any:
        """Return the first answer once all have arrived; raise errors immediately."""
        left = list(answers)
        try:
            while left:
                done, left = ray.wait(left, timeout=POLL_SECONDS if self._functions else None)
                ray.get(done)
                self._serve()
            return ray.get(answers[0])
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            raise worker_died("a worker of the learner", error) or error from error

    def _serve(self) -> None:
        if not self._functions:
            return
        try:
            name, arguments = self._starter.requests.get(block=False)
        except Empty:
            return
        try:
            self._starter.answers.put((True, self._functions[name](*arguments)))
        except BaseException:
            self._starter.answers.put((False, None))
            raise


def learner_group(learner: LearnerConfig) -> PlacementGroup:
    """Placement group of the workers, on as few machines as possible."""
    return placement_group([learner.bundle.resources] * learner.workers, strategy="PACK")


class _Runner(GroupWorker):
    def run(self, work: Callable[[Starter], T]) -> T:
        return work(self.starter)


def learn_on_workers(
    learner: LearnerConfig, ray_config: RayConfig | None, work: Callable[[Starter], T], functions: Mapping[str, Callable[..., Any]]
) -> T:
    """Run the pickled `work` on each worker and return the main worker's result. Raises as `WorkerGroup` does."""
    with closing(WorkerGroup(_Runner, learner, ray_config, functions)) as group:
        return group.call("run", work)


SYNC = ("begin", "step", "record")
"""Functions of `WeightSyncHandle` that the main worker calls during `publish`."""


class LearnerGroup:
    def __init__(
        self,
        policy: Path,
        output: Path,
        config: ReinforceConfig,
        seed: int,
        engines: EngineWeights,
        weight_sync: WeightSyncHandle | None = None,
        ray_config: RayConfig | None = None,
    ) -> None:
        """Start the workers and load the policy in each. Raises as `WorkerGroup` does."""
        functions = {} if weight_sync is None else {name: getattr(weight_sync, name) for name in SYNC}
        self._group = WorkerGroup(_LearnerWorker, config.learner, ray_config, functions)
        self._whole = True
        try:
            self.encoding: Encoding = self._group.call("open", policy.resolve(), output.resolve(), config, seed, engines, bool(functions))
        except BaseException:
            self._group.close()
            raise

    def score(self, rows: Sequence[Row]) -> Scores:
        return self._call("score", ray.put(rows))

    def update(self, rows: Sequence[Row], step: int) -> Update:
        return self._call("update", ray.put(rows), step)

    def publish(self, version: int, record: bool = False) -> Path | None:
        return self._call("publish", version, record)

    def save(self, step: int, state: dict[str, Any]) -> None:
        self._call("save", step, state)

    def load(self) -> tuple[int, dict[str, Any]] | None:
        return self._call("load")

    def write(self, folder: Path) -> None:
        self._call("write", folder.resolve())

    def close(self) -> None:
        """Close the workers; after a fault kill them at once, since some may wait for a dead one."""
        try:
            if self._whole:
                self._call("close")
        finally:
            self._group.close()

    def _call(self, verb: str, *arguments: Any) -> Any:
        self._whole = False
        answer = self._group.call("do", verb, *arguments)
        self._whole = True
        return answer


class _LearnerWorker(GroupWorker):
    def open(self, policy: Path, output: Path, config: ReinforceConfig, seed: int, engines: EngineWeights, sends: bool) -> Encoding:
        from rl.learner.local import load_learner

        sync = WeightSyncHandle(*map(self.starter.function, SYNC)) if sends and self.starter.is_main else None
        self._learner = load_learner(policy, output, config, seed, engines, sync)
        return self._learner.encoding

    def do(self, verb: str, *arguments: Any) -> Any:
        return getattr(self._learner, verb)(*arguments)
