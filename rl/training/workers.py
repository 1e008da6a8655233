"""Workers of Ray Train: a stage's learner in several processes, and their way back to the process that started them.

That process owns engines, environments and lake, and keeps them; the workers own the weights. The main worker calls the starter's
functions by their names, and the starter answers them in its own thread while the training runs. What they write, they write into
folders that all of them see.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2.api.config import FailureConfig
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError
from ray.util.queue import Empty, Queue

from rl.env_pool.config import RayConfig
from rl.env_pool.ray_runtime import RayRuntime
from rl.placement import learner_bundle
from rl.training.base import Stateful
from rl.training.optimizer_config import LearnerConfig
from rl.worker_death import WITHOUT_A_WORD, WorkerDied, worker_died

T = TypeVar("T")

POLL_SECONDS = 0.5
"""How often the starter looks whether the training has ended without a call."""
COLLECTIVE_SECONDS = 6 * 3600
"""How long workers wait for the main one, which waits for the trajectories of a step."""

_WORKER = "a worker of the learner"
_calling = threading.Lock()
"""Answers bear no names: calls of several threads of a worker come one after the other."""


@dataclass(frozen=True, slots=True)
class Starter:
    """The process that started the workers, as a worker sees it."""

    requests: Queue
    answers: Queue

    def function(self, name: str) -> Callable[..., Any]:
        """The starter's function of that name. In workers other than the main one it does nothing and gives None."""
        return partial(self._call, name) if ray.train.get_context().get_world_rank() == 0 else _nothing

    def _call(self, name: str, *arguments: Any) -> Any:
        with _calling:
            self.requests.put((name, arguments))
            answered, answer = self.answers.get()
        if not answered:
            raise RuntimeError(f"the process that started the learner failed in {name}")
        return answer


class _RemoteState:
    """An object of the starter's that remembers something and stands in checkpoints."""

    def __init__(self, starter: Starter, name: str) -> None:
        self._starter = starter
        self._name = name

    def state_dict(self) -> dict[str, Any]:
        """What it remembers."""
        return self._starter.function(f"{self._name}.state_dict")()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have it go on from `state`."""
        self._starter.function(f"{self._name}.load_state_dict")(state)


def remote_state(starter: Starter, name: str) -> Stateful:
    """The object called `name` of the process that started the learner, as checkpoints see it."""
    return _RemoteState(starter, name)


def state_functions(states: Mapping[str, Stateful]) -> dict[str, Callable[..., Any]]:
    """The functions that `remote_state` of each of the names calls."""
    methods = ("state_dict", "load_state_dict")
    return {f"{name}.{method}": getattr(state, method) for name, state in states.items() for method in methods}


def learn_on_workers(
    learner: LearnerConfig,
    ray_config: RayConfig | None,
    folder: Path,
    work: Callable[[Starter], T],
    functions: Mapping[str, Callable[..., Any]],
) -> T:
    """Run `work` on each worker, and return what the main one returns.

    Args:
        ray_config: how Ray is reached where nobody started it yet; None starts it on this machine.
        folder: where Ray Train keeps its own notes while this runs; all workers must see it.
        work: is pickled. All workers run it at once, as ranks of one process group.
        functions: what `work` may call in this process.

    Raises:
        WorkerDied: a worker died.
        Exception: what a function or `work` raised, as it was raised.
    """
    runtime = RayRuntime(ray_config or RayConfig(), learner.workers * learner.cpus)
    try:
        starter = Starter(Queue(actor_options={"num_cpus": 0}), Queue(actor_options={"num_cpus": 0}))
        with ThreadPoolExecutor(1) as executor:
            training = executor.submit(_trainer(learner, folder, work, starter).fit)
            failure = _serve(training, starter, functions)
        if failure is not None:
            raise failure
        return _outcome(training)
    finally:
        runtime.close()
        shutil.rmtree(_notes(folder), ignore_errors=True)


def _trainer(learner: LearnerConfig, folder: Path, work: Callable[[Starter], T], starter: Starter) -> TorchTrainer:
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # paths of the configuration are relative to where the stage was started

    def learn() -> T:
        if learner.workers == 1:
            _leave_group()
        return work(starter)

    return TorchTrainer(
        learn,  # type: ignore[arg-type]  # what it returns comes back, whatever its annotation says
        torch_config=TorchConfig(backend="nccl" if learner.gpus else "gloo", timeout_s=COLLECTIVE_SECONDS),
        scaling_config=scaling(learner),
        run_config=RunConfig(
            name="learner",
            storage_path=str(_notes(folder)),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            worker_runtime_env={"env_vars": {"PYTHONSAFEPATH": "1"}},  # type: ignore[call-arg]  # its types are those of an older form
        ),
    )


def _leave_group() -> None:
    """Have accelerate take this worker for a process by itself: it wraps the model of a group, even of one, in DDP, which copies gradients
    and refuses weights that get none, as those of a policy whose critic warms up.
    """
    for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)


def scaling(learner: LearnerConfig) -> ScalingConfig:
    """What Ray Train reserves for a learner."""
    resources = learner_bundle(learner).resources
    return ScalingConfig(num_workers=learner.workers, use_gpu=learner.gpus > 0, resources_per_worker=resources)


def _serve(training: Future[Any], starter: Starter, functions: Mapping[str, Callable[..., Any]]) -> BaseException | None:
    """Answer the main worker until the training ends; the first failure here, after which every call is refused and so ends it."""
    failure: BaseException | None = None
    while not training.done():
        call, answer = None, None
        try:
            call = _next_call(starter)
            if call is not None and failure is None:
                answer = functions[call[0]](*call[1])
        except BaseException as error:  # kept, and raised once the workers are gone
            failure = failure or error
        if call is not None:
            starter.answers.put((failure is None, answer))
    return failure


def _next_call(starter: Starter) -> tuple[str, tuple[Any, ...]] | None:
    """The name and the arguments of the next call; None where none comes for a while."""
    try:
        return starter.requests.get(timeout=POLL_SECONDS)
    except Empty:
        return None


def _outcome(training: Future[Any]) -> Any:
    """What the main worker returned; what one of them raised is raised here as it was, or `WorkerDied` where one died."""
    try:
        return training.result().return_value
    except WorkerGroupError as error:
        first = error.worker_failures[min(error.worker_failures)]
        raise getattr(first, "_base_exc", None) or worker_died(_WORKER, first) or first from error
    except ControllerError as error:
        died = worker_died(_WORKER, error)
        if died is None and isinstance(error.controller_failure, WorkerGroupStartupFailedError):  # what it was raised from stayed behind
            died = WorkerDied(_WORKER, WITHOUT_A_WORD)
        raise died or error from error


def _notes(folder: Path) -> Path:
    return folder.resolve() / "ray_train"


def _nothing(*arguments: Any) -> None:
    """Stands for the starter's functions in workers that are not the main one."""
