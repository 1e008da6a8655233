"""vLLM extensions: weight transfer over gloo, weight loading that updates derived matrices, sleep on CPUs, and load statistics.

Gloo transfers serve engines and learners without NCCL, as on CPUs. They follow vLLM's NCCL transfer with the same handshake, rounds and
layer-by-layer reload. The learner is rank 0 and broadcasts from host memory, many weights per message.

Importing this module registers `gloo` on both sides; workers import it for `WeightExtension` before any other module of this project.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo, VLLMWeightSyncClient, WeightSource, WeightTransferInitInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferEngine,
    NCCLWeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.packed_tensor import unpack_tensor
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
from vllm.platforms import current_platform
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from rl.engines.base import PressureGauge

CACHE, WEIGHTS = "kv_cache", "weights"
"""vLLM's memory tags."""

_DERIVED = "cpu_linear"
"""Attribute with the packed matrix that vLLM's CPU layers multiply with, often its only copy."""


class CpuSleep:
    """Sleep for CPU workers, mixed into vLLM's worker by `WeightExtension`; `self` is the worker. A no-op on other platforms."""

    model_runner: Any
    vllm_config: Any
    _given_back: dict[str, list[tuple[torch.UntypedStorage, int]]]

    def give_back_memory(self, level: int) -> None:
        """Free the KV cache, and at level 2 the weights. Idempotent."""
        if not current_platform.is_cpu():
            return
        _silence_vllm()
        self._given_back = getattr(self, "_given_back", {})
        if CACHE not in self._given_back:
            self._given_back[CACHE] = _release(self._caches())
        if level > 1 and WEIGHTS not in self._given_back:
            model = self.model_runner.get_model()
            for layer in _layers_with_matrices(model):
                setattr(layer, _DERIVED, _refuse)
            self._given_back[WEIGHTS] = _release(parameter.data for parameter in model.parameters())

    def take_memory(self, parts: list[str]) -> None:
        """Reallocate `parts`: a zeroed cache, invalid weights (all bits set)."""
        given_back = getattr(self, "_given_back", {})
        for part in parts:
            for storage, size in given_back.pop(part, ()):
                storage.resize_(size)
                torch.tensor([], dtype=torch.uint8).set_(storage).fill_(0 if part == CACHE else 0xFF)

    def _caches(self) -> Iterator[Tensor]:
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        return (cache for layer in layers if isinstance(cache := getattr(layer, "kv_cache", None), Tensor))


def _release(tensors: Iterator[Tensor]) -> list[tuple[torch.UntypedStorage, int]]:
    """Free the storages of tensors, each once, and return them with their sizes."""
    storages = {storage.data_ptr(): storage for tensor in tensors if (storage := tensor.untyped_storage()).nbytes()}
    found = [(storage, storage.nbytes()) for storage in storages.values()]
    for storage, _ in found:
        storage.resize_(0)
    return found


def _layers_with_matrices(model: nn.Module) -> Iterator[nn.Module]:
    return (layer for layer in model.modules() if hasattr(layer, _DERIVED))


def _refuse(*arguments: object) -> NoReturn:
    raise RuntimeError("this engine's weights were freed when it went to sleep, and none have been loaded since")


def _silence_vllm() -> None:
    """Silence vLLM's warning that CPU workers ignore the call."""
    logger = logging.getLogger("vllm.v1.worker.cpu_worker")
    if not logger.filters:
        logger.addFilter(lambda record: "sleep mode is not supported" not in record.getMessage())


NAME = "gloo"
MESSAGE_BYTES = 2**26
"""Maximum message size in bytes; a larger weight is a message of its own."""


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """What a worker needs to join: the learner's address, its own rank offset, and a timeout."""

    address: str
    port: int
    rank_offset: int
    world_size: int
    timeout_seconds: float


@dataclass
class GlooTrainerInitInfo(TrainerInitInfo):
    """What the learner needs: its listening address, the world size, and a timeout."""

    backend: ClassVar[str] = NAME
    address: str
    world_size: int
    timeout_seconds: float


class GlooGroup:
    """Broadcast group with rank 0 as source, over a store that rank 0 holds; independent of torch's global groups."""

    def __init__(self, store: TCPStore, own_address: str, rank: int, size: int, timeout: timedelta) -> None:
        """Return once all have joined. Raises RuntimeError after `timeout`."""
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=own_address)]
        options._timeout = timeout
        self._store = store
        self._group: Any = ProcessGroupGloo(PrefixStore("weights", store), rank, size, options)

    def broadcast(self, tensor: Tensor) -> None:
        """Send `tensor` from rank 0, or overwrite it with rank 0's. Raises RuntimeError if another process is gone or too slow."""
        options = BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([tensor], options).wait()

    def destroy(self) -> None:
        """Leave the group; processes waiting for this one get an error."""
        self._group.shutdown()


class GlooWeightTransferEngine(NCCLWeightTransferEngine):
    """Worker side of the gloo transfer."""

    init_info_cls = GlooInitInfo  # type: ignore[assignment]  # vLLM's class is declared for NCCL only
    model_update_group: Any
    model: Any

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:  # type: ignore[override]
        """Join the learner's group, leaving an earlier one."""
        self.shutdown()
        timeout = timedelta(seconds=init_info.timeout_seconds)
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        with socket.create_connection((init_info.address, init_info.port), init_info.timeout_seconds) as connection:
            own_address = connection.getsockname()[0]
        store = TCPStore(init_info.address, init_info.port, is_master=False, timeout=timeout)
        self.model_update_group = GlooGroup(store, own_address, rank, init_info.world_size, timeout)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As vLLM's, but without synchronizing with a GPU."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        """Receive all weights and load them message by message."""
        if self.model_update_group is None:
            raise RuntimeError("a worker that has not joined the learner's group cannot receive weights")
        dtypes = [getattr(torch, name) for name in update_info.dtype_names]
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(update_info.shapes, dtypes, strict=True)]
        with disable_mtp_completeness_check():
            for part in messages(sizes):
                buffer = torch.empty(sum(sizes[part]), dtype=torch.uint8)
                self.model_update_group.broadcast(buffer)
                self.model.load_weights(unpack_tensor(buffer, update_info.names[part], update_info.shapes[part], dtypes[part], sizes[part]))

    def finish_weight_update(self) -> None:
        """Install the weights and everything derived from them."""
        super().finish_weight_update()
        repack_head(self.model)


class GlooTrainerWeightTransferEngine(NCCLTrainerWeightTransferEngine):
    """Learner side of the gloo transfer."""

    init_info_cls = GlooTrainerInitInfo  # type: ignore[assignment]
    model_update_group: Any

    @classmethod
    def trainer_init(  # type: ignore[override]
        cls, init_info: GlooTrainerInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> Self:
        """Listen, and return once all workers have joined."""
        if source is None:
            raise ValueError("the learner has no weights to transfer")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if not engine.is_sender:
            return engine
        timeout = timedelta(seconds=init_info.timeout_seconds)
        store, port = _listen(init_info.address, timeout)
        theirs = GlooInitInfo(init_info.address, port, 1, init_info.world_size, init_info.timeout_seconds)
        with ThreadPoolExecutor(1) as executor:  # workers answer only after they have met this process in the group
            joined = executor.submit(client.init_weight_transfer_engine, asdict(theirs))
            engine.model_update_group = GlooGroup(store, init_info.address, 0, init_info.world_size, timeout)
            joined.result()
        return engine

    def _broadcast(self, source: WeightSource, meta: list[ParamMeta]) -> None:
        if not self.is_sender:
            super()._broadcast(source, meta)
            return
        weights = self._checked_iter(source, meta)
        for part in messages([math.prod(each.shape) * each.dtype.itemsize for each in meta]):
            count = part.stop - part.start
            self.model_update_group.broadcast(torch.cat([_bytes(tensor) for _, tensor in _take(weights, count)]))


def messages(sizes: Sequence[int]) -> Iterator[slice]:
    """Group consecutive weights of `sizes` bytes into messages of at most `MESSAGE_BYTES`, or of one weight."""
    start = total = 0
    for number, size in enumerate(sizes):
        if number > start and total + size > MESSAGE_BYTES:
            yield slice(start, number)
            start, total = number, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))


def repack_head(model: torch.nn.Module) -> None:
    """Repack `lm_head` from its weights.

    On CPUs vLLM packs the head into a separate matrix and does not repack it if it is tied to the embeddings; log-probabilities were then
    off by up to 1.0 after an update (measured).
    """
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear"):
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def _listen(address: str, timeout: timedelta) -> tuple[TCPStore, int]:
    """A store that listens on `address` only, and its port."""
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        store = TCPStore(address, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=server.detach())
    return store, port


def _take(weights: Iterator[tuple[str, Tensor]], count: int) -> Iterator[tuple[str, Tensor]]:
    return (next(weights) for _ in range(count))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


class WeightExtension(CpuSleep):
    """Mixed into vLLM's worker by `worker_extension_cls`; `self` is the worker."""

    model_config: Any
    _weight_update_active: bool

    def load_policy(self, path: str) -> None:
        """Load the weights in folder `path` in place."""
        self.model_runner.reload_weights(weights_path=path)
        repack_head(self.model_runner.get_model())

    def abandon_transfer(self) -> None:
        """Abandon a broken transfer. Weights are mixed, so the model is unusable until the next load."""
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.model_runner.get_model(), self.model_config)  # type: ignore[no-untyped-call]
        self._weight_update_active = False


WeightTransferEngineFactory.register_engine(NAME, GlooWeightTransferEngine)
WeightTransferTrainerFactory.register_engine(NAME, GlooTrainerWeightTransferEngine)


class PressureLogger(StatLoggerBase):
    def __init__(self, gauge: PressureGauge, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self._gauge = gauge

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        """Called by vLLM after each step."""
        if scheduler_stats is not None:
            preempted = iteration_stats.num_preempted_reqs if iteration_stats is not None else 0
            self._gauge.see(scheduler_stats.kv_cache_usage, scheduler_stats.num_waiting_reqs, preempted)

    def log_engine_initialized(self) -> None:
        """Required by vLLM."""


def pressure_logger(gauge: PressureGauge) -> partial[PressureLogger]:
    return partial(PressureLogger, gauge)
