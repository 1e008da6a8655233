"""Engine side of weight sync: which engines take part, whether weights fit, and how a transfer fails.

The learner drives it (`rl/engines/weight_sender.py`): it holds the engines and runs each step of vLLM's transfer on all of them at once. If
an engine did not take part or a step failed, the version is written to a folder and loaded from there. Engines that start between two
versions load the folder of the last checkpoint.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from rl.engines.base import EngineFault
from rl.engines.config import CUDA_TRANSFERS
from warehouse.errors import RequestError

if TYPE_CHECKING:  # the learner imports this module and needs no Ray
    from rl.engines.replica import Replica, Weights

Shapes = Mapping[str, tuple[int, ...]]
"""Shape of each weight by its name in the policy's folder."""

STEPS = {
    "init_weight_transfer_engine": "join_transfer",
    "start_weight_update": "start_transfer",
    "update_weights": "receive_weights",
    "finish_weight_update": "finish_transfer",
}
"""Steps of vLLM's weight transfer and the engine methods that run them."""


@dataclass(frozen=True, slots=True)
class PendingTransfer:
    """A transfer that `engines` are held for; without engines there is nothing to send."""

    backend: str
    timeout_seconds: float
    engines: tuple[str, ...]
    workers: int
    """Number of vLLM workers of all these engines."""
    left_out: int = 0
    """Number of starting engines, which must load this version from its folder."""


BeginTransfer = Callable[[Shapes, Path, int], PendingTransfer]
"""Hold the engines for weights of these shapes, identified by folder and version."""

StepTransfer = Callable[[str, dict[str, Any]], str | None]
"""Run one of `STEPS` on the engines. Returns the error as text, if any, because it may cross a process boundary."""


@dataclass(frozen=True, slots=True)
class WeightSyncHandle:
    """Callbacks by which a learner that sends its weights drives the engines."""

    begin: BeginTransfer
    step: StepTransfer
    record: Callable[[Path, int], None]
    """Sets folder and version that engines starting from now on load."""


@dataclass(slots=True)
class Receivers:
    """Engines of one transfer, held for `weights`; `done` once they have them."""

    weights: Weights
    replicas: Sequence[Replica]
    workers_each: int
    timeout_seconds: float
    done: bool = field(default=False)

    async def step(self, step: str, info: Mapping[str, Any]) -> None:
        """Run a step on all engines concurrently.

        Raises:
            EngineFault: an engine fails, or not all finish within `timeout_seconds`.
        """
        works = [replica.call(STEPS[step], *self._arguments(step, info, number)) for number, replica in enumerate(self.replicas)]
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await asyncio.gather(*works)
        except TimeoutError as error:
            raise EngineFault(f"{step} took more than {self.timeout_seconds:g} seconds") from error
        if step == "finish_weight_update":
            self.done = True
            for replica in self.replicas:
                replica.weights = self.weights

    def _arguments(self, step: str, info: Mapping[str, Any], number: int) -> tuple[Any, ...]:
        """Arguments of a step for engine `number`; engines have consecutive ranks."""
        if step == "start_weight_update":
            return ()
        if step == "finish_weight_update":
            return (self.weights[1],)
        if "rank_offset" in info:
            return ({**info, "rank_offset": info["rank_offset"] + number * self.workers_each},)
        return (dict(info),)


def check_fit(shapes: Shapes, folder: Path) -> None:
    """Check that weights match the names and shapes of the policy in `folder`.

    Raises:
        RequestError: a weight is missing, unknown, or of another shape.
    """
    theirs = shapes_in(folder)
    for name in sorted({*shapes, *theirs}):
        if name not in shapes:
            found = "the learner has no such weight"
        elif name not in theirs:
            found = "the engines' policy has no such weight"
        elif shapes[name] != theirs[name]:
            found = f"its shape is {list(shapes[name])} in the learner and {list(theirs[name])} in the engines"
        else:
            continue
        raise RequestError(
            f"The learner's weights do not match the engines, which started with {folder}: {name}: {found}; train that policy."
        )


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights in a policy's folder.

    Raises:
        RequestError: the folder holds no policy or an incomplete weight file.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        raise RequestError(f"{folder} does not contain a policy: it needs a config.json and safetensors weights.")
    for index in folder.glob("*.safetensors.index.json"):
        missing = set(json.loads(index.read_text())["weight_map"].values()) - {file.name for file in files}
        if missing:
            raise RequestError(f"{folder} contains an incomplete policy: {index.name} lists {min(missing)}, which is missing.")
    shapes = {}
    for file in files:
        try:
            with safe_open(file, framework="numpy") as weights:
                shapes.update({name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()})  # noqa: SIM118
        except SafetensorError as error:
            raise RequestError(f"{file} is not a complete weight file: {error}.") from error
    return shapes


def check_device(backend: str) -> None:
    """Raise RequestError if `backend` needs CUDA and this process has none."""
    import torch

    if backend in CUDA_TRANSFERS and not torch.cuda.is_available():
        raise RequestError(
            f"rollout.engine.transfer = {backend} needs CUDA GPUs for the learner and the engines, and there is none here: "
            f"use gloo or files."
        )
