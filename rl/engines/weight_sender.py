"""Learner side of weight sync: sends weights with vLLM's trainer engine over the configured backend.

Engines added or replaced since the last transfer join again. A failure ends the transfer within a bounded time and is logged; the learner
then publishes the version as a folder, which the engines load.
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

from rl.engines.base import EngineFault
from rl.engines.vllm_extensions import GlooTrainerInitInfo
from rl.engines.weight_sync import PendingTransfer, WeightSyncHandle, check_device

T = TypeVar("T")

logger = logging.getLogger(__name__)


class WeightSender:
    """Sends the weights of one policy, version by version."""

    def __init__(self, weight_sync: WeightSyncHandle) -> None:
        self._weight_sync = weight_sync
        self._source = _Weights()
        self._joined: tuple[str, ...] = ()
        self._client = _Client(weight_sync)
        self._transfer: TrainerWeightTransferEngine | None = None

    def send(self, weights: Mapping[str, Tensor], folder: Path, version: int) -> bool:
        """Send weights to the engines as `version`; return whether all engines have them, so that none needs `folder`.

        Args:
            weights: full tensors on any device, by their names in `folder`.

        Raises:
            RequestError: they do not match the engines' policy, or this machine lacks what the backend needs.
        """
        pending = self._weight_sync.begin({name: tuple(weight.shape) for name, weight in weights.items()}, folder, version)
        check_device(pending.backend)
        self._source.take(weights, torch.device("cpu") if pending.backend == "gloo" else _own_gpu())
        try:
            if pending.engines:
                _within(pending.timeout_seconds, self._join(pending).send_weights)
        except (EngineFault, RuntimeError, OSError) as error:  # torch and NCCL raise RuntimeError
            logger.warning(
                "version %d could not be sent; the engines load it from its folder: %s: %s", version, type(error).__name__, error
            )
            self.close()
            return False
        finally:
            self._source.forget()
        return bool(pending.engines) and not pending.left_out

    def record(self, folder: Path, version: int) -> None:
        """Set the folder that engines starting from now on load, until they receive a newer version."""
        self._weight_sync.record(folder, version)

    def close(self) -> None:
        """Leave the engines; the next `send` joins them again."""
        transfer, self._transfer, self._joined, self._client.closed = self._transfer, None, (), True
        if transfer is not None:
            transfer.shutdown()

    def _join(self, pending: PendingTransfer) -> TrainerWeightTransferEngine:
        """vLLM's trainer engine, joined with the engines of `pending`."""
        if self._transfer is None or pending.engines != self._joined:
            self.close()
            self._client = client = _Client(self._weight_sync)
            info = _init_info(pending)
            init = WeightTransferTrainerFactory.trainer_init
            self._transfer = _within(pending.timeout_seconds, lambda: init(info, client=client, source=self._source))
            self._joined = pending.engines
        return self._transfer


@dataclass(slots=True)
class _Client:
    """Client of vLLM's trainer engine that forwards steps to the engines; refuses once `closed`, also from a leftover thread."""

    weight_sync: WeightSyncHandle
    closed: bool = field(default=False)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._step("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self._step("start_weight_update", {})

    def update_weights(self, update_info: Any) -> None:
        self._step("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._step("finish_weight_update", {})

    def _step(self, step: str, info: dict[str, Any]) -> None:
        failed = "the transfer is over" if self.closed else self.weight_sync.step(step, info)
        if failed is not None:
            raise EngineFault(failed)


class _Weights(WeightSource):
    """Weights of one version, yielded one by one on the sending device."""

    def __init__(self) -> None:
        self._weights: Mapping[str, Tensor] = {}
        self._device = torch.device("cpu")

    def take(self, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self._weights, self._device = weights, device

    def forget(self) -> None:
        self._weights = {}

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, weight.dtype, tuple(weight.shape)) for name, weight in self._weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, weight.detach().to(self._device)) for name, weight in self._weights.items())


def _init_info(pending: PendingTransfer) -> TrainerInitInfo:
    """Init info of the backend for the learner: the only sender, rank 0."""
    size = 1 + pending.workers
    if pending.backend == "gloo":
        return GlooTrainerInitInfo(_own_address(), size, pending.timeout_seconds, rank=0)
    if pending.backend == "nccl":
        return NCCLTrainerInitInfo(_own_address(), get_open_port(), size, rank=0)
    return IPCTrainerInitInfo(rank=0)


def _own_address() -> str:
    """Address at which engines reach this process: loopback if Ray has one machine."""
    alone = sum(node["Alive"] for node in ray.nodes()) == 1  # type: ignore[no-untyped-call]
    return "127.0.0.1" if alone else str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _own_gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result. Raises TimeoutError and abandons the thread, because NCCL has no timeout."""
    ended: Future[T] = Future()
    device = torch.cuda.current_device() if torch.cuda.is_available() else None

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)  # the current device is per thread
            ended.set_result(work())
        except BaseException as error:  # raised again in the caller
            ended.set_exception(error)

    threading.Thread(target=run, name="weight transfer", daemon=True).start()
    if not wait([ended], seconds).done:
        raise TimeoutError(f"it took more than {seconds:g} seconds")
    return ended.result()
