"""Weight sync, the engines' side: which engines take part, whether the weights fit, and how a transfer fails.

The learner drives (`rl/engines/weight_sender.py`): it has the engines held, and then makes the steps of vLLM's weight transfer, each in
all of them at once. What has come to all of them needs no folder. Where one did not take part, or something broke, the folder of the
version is written and loaded; and the last folder that a checkpoint wrote is what engines that start between two versions begin with.
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

if TYPE_CHECKING:  # a learner knows the handle, and needs no Ray
    from rl.engines.replica import Replica, Weights

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each weight by its name, as a folder of the policy has it."""

STEPS = {
    "init_weight_transfer_engine": "join_transfer",
    "start_weight_update": "start_transfer",
    "update_weights": "receive_weights",
    "finish_weight_update": "finish_transfer",
}
"""Steps of vLLM's weight transfer, and the engine's methods that carry them out."""


@dataclass(frozen=True, slots=True)
class PendingTransfer:
    """A transfer that engines are held for; without engines there is nothing to send."""

    backend: str
    timeout_seconds: float
    engines: tuple[str, ...]
    workers: int
    """The number of vLLM workers of all these engines together."""
    left_out: int = 0
    """Engines that want the version too and can take no part, for they are starting: they load its folder."""


BeginTransfer = Callable[[Shapes, Path, int], PendingTransfer]
"""Holds the engines for weights of these shapes, which their folder and their version name."""

StepTransfer = Callable[[str, dict[str, Any]], str | None]
"""Has the engines make one of `STEPS`. Returns the error, if any, and raises none, since it may have to cross to another process."""


@dataclass(frozen=True, slots=True)
class WeightSyncHandle:
    """How a learner that sends its weights drives the engines."""

    begin: BeginTransfer
    step: StepTransfer
    record: Callable[[Path, int], None]
    """Names the folder that engines which start from now on begin with, and its version, which may be an older one than was sent."""


@dataclass(slots=True)
class Receivers:
    """The engines of one transfer, which are held for `weights`; `done` when they have them."""

    weights: Weights
    replicas: Sequence[Replica]
    workers_each: int
    timeout_seconds: float
    done: bool = field(default=False)

    async def step(self, step: str, info: Mapping[str, Any]) -> None:
        """Have all engines make a step at once.

        Raises:
            EngineFault: where one of them fails, or not all have made it within `timeout_seconds`.
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
        """The arguments of a step for one engine; the ranks of several follow each other."""
        if step == "start_weight_update":
            return ()
        if step == "finish_weight_update":
            return (self.weights[1],)
        if "rank_offset" in info:
            return ({**info, "rank_offset": info["rank_offset"] + number * self.workers_each},)
        return (dict(info),)


def check_fit(shapes: Shapes, folder: Path) -> None:
    """Check that the weights to send have the names and shapes of the policy that the engines began with.

    Raises:
        RequestError: where one is missing, unknown, or of another shape.
    """
    theirs = shapes_in(folder)
    for name in sorted({*shapes, *theirs}):
        if name not in shapes:
            found = "the learner has no such weight"
        elif name not in theirs:
            found = "the engines' policy has no such weight"
        elif shapes[name] != theirs[name]:
            found = f"the learner's has the shape {list(shapes[name])}, the engines' {list(theirs[name])}"
        else:
            continue
        raise RequestError(f"The learner's weights do not fit the engines, which began with {folder}: {name}: {found}; train that policy.")


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """The weights in a policy's folder.

    Raises:
        RequestError: the folder holds no policy, or a file of weights in it is not whole.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        raise RequestError(f"{folder} holds no policy: it needs a config.json and weights as safetensors.")
    for index in folder.glob("*.safetensors.index.json"):
        missing = set(json.loads(index.read_text())["weight_map"].values()) - {file.name for file in files}
        if missing:
            raise RequestError(f"{folder} holds no whole policy: {index.name} names {min(missing)}, and that is not there.")
    shapes = {}
    for file in files:
        try:
            with safe_open(file, framework="numpy") as weights:
                shapes.update({name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()})  # noqa: SIM118
        except SafetensorError as error:
            raise RequestError(f"{file} is no whole file of weights: {error}.") from error
    return shapes


def check_device(backend: str) -> None:
    """Raises RequestError where this process, which is to send or to receive, cannot transfer weights in that way."""
    import torch

    if backend in CUDA_TRANSFERS and not torch.cuda.is_available():
        raise RequestError(
            f"rollout.engine.transfer = {backend} needs a GPU with CUDA where the learner and the engines run, and there is none here: "
            f"take gloo, or files."
        )
