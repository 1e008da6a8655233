"""The learner's side of a transfer of weights: vLLM's own trainer engine, by whichever of its backends the configuration names.

Engines that were added or replaced since the last transfer are met anew. What goes wrong ends the transfer, in bounded time, and is
told in the log: the learner then publishes the folder that it writes in any case, and the engines load that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import ray
import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo, TrainerWeightTransferEngine, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_open_port

from rl.engine import EngineFault
from rl.engines.gloo import GlooTrainerInitInfo
from rl.engines.transfer import Begun, HandOver, check_device

T = TypeVar("T")

logger = logging.getLogger(__name__)


class WeightSender:
    """Sends versions of one policy's weights, one after the other."""

    def __init__(self, hand_over: HandOver) -> None:
        self._hand_over = hand_over
        self._source = _Weights()
        self._met: tuple[str, ...] = ()
        self._client = _Client(hand_over)
        self._transfer: TrainerWeightTransferEngine | None = None

    def send(self, weights: Mapping[str, Tensor], folder: Path, version: int) -> bool:
        """Send weights to the engines, which go on with them as `version`; whether they have.

        Args:
            weights: by the names that they will have in `folder`, whole, on any device.

        Raises:
            RequestError: they are not those of the policy that the engines have, or this machine cannot send in the configured way.
        """
        begun = self._hand_over.begin({name: tuple(weight.shape) for name, weight in weights.items()}, folder, version)
        check_device(begun.backend)
        self._source.take(weights, torch.device("cpu") if begun.backend == "gloo" else _own_gpu())
        try:
            if begun.engines:
                _within(begun.timeout_seconds, self._meet(begun).send_weights)
        except (EngineFault, RuntimeError, OSError) as error:  # torch and NCCL raise RuntimeError
            logger.warning("version %d could not be sent, and the engines load its folder: %s: %s", version, type(error).__name__, error)
            self.close()
            return False
        finally:
            self._source.forget()
        return bool(begun.engines)

    def close(self) -> None:
        """Part from the engines; the next `send` meets them anew."""
        transfer, self._transfer, self._met, self._client.closed = self._transfer, None, (), True
        if transfer is not None:
            transfer.shutdown()

    def _meet(self, begun: Begun) -> TrainerWeightTransferEngine:
        """What sends to these engines."""
        if self._transfer is None or begun.engines != self._met:
            self.close()
            self._client = client = _Client(self._hand_over)
            told = _told(begun)
            init = WeightTransferTrainerFactory.trainer_init
            self._transfer = _within(begun.timeout_seconds, lambda: init(told, client=client, source=self._source))
            self._met = begun.engines
        return self._transfer


@dataclass(slots=True)
class _Client:
    """The engines as vLLM's trainer engine knows them. One that is `closed` says nothing more, whoever still calls it."""

    hand_over: HandOver
    closed: bool = field(default=False)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._step("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self._step("start_weight_update", {})

    def update_weights(self, update_info: Any) -> None:
        self._step("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._step("finish_weight_update", {})

    def _step(self, step: str, told: dict[str, Any]) -> None:
        failed = "the transfer is over" if self.closed else self.hand_over.step(step, told)
        if failed is not None:
            raise EngineFault(failed)


class _Weights(WeightSource):
    """The weights of one version, given one after the other on the device that they are sent from."""

    def __init__(self) -> None:
        self._weights: Mapping[str, Tensor] = {}
        self._device = torch.device("cpu")

    def take(self, weights: Mapping[str, Tensor], device: torch.device) -> None:
        """Give these from now on."""
        self._weights, self._device = weights, device

    def forget(self) -> None:
        """Hold no weights any longer."""
        self._weights = {}

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, weight.dtype, tuple(weight.shape)) for name, weight in self._weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, weight.detach().to(self._device)) for name, weight in self._weights.items())


def _told(begun: Begun) -> TrainerInitInfo:
    """What vLLM wants to know of the learner; it is the only one that sends, and of rank 0."""
    size = 1 + begun.workers
    if begun.backend == "gloo":
        return GlooTrainerInitInfo(_own_address(), size, begun.timeout_seconds, rank=0)
    if begun.backend == "nccl":
        return NCCLTrainerInitInfo(_own_address(), get_open_port(), size, rank=0)
    return IPCTrainerInitInfo(rank=0)


def _own_address() -> str:
    """Where engines reach this process: on one machine nobody else need."""
    alone = sum(node["Alive"] for node in ray.nodes()) == 1  # type: ignore[no-untyped-call]
    return "127.0.0.1" if alone else str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _own_gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def _within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises, or a TimeoutError after so long: NCCL itself has no limit, so it is left behind in a thread."""
    ended: Future[T] = Future()
    device = torch.cuda.current_device() if torch.cuda.is_available() else None

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)  # each thread has its own
            ended.set_result(work())
        except BaseException as error:  # the caller's to understand
            ended.set_exception(error)

    threading.Thread(target=run, name="weight transfer", daemon=True).start()
    if not wait([ended], seconds).done:
        raise TimeoutError(f"it took more than {seconds:g} seconds")
    return ended.result()
