"""Sleep for vLLM's CPU workers, which ignore it: free memory on `sleep` and allocate it again on `wake_up`.

Scheduler and executor handle sleep as on a GPU. Level 1 frees the cache (weights are in host memory already); level 2 also frees the
weights and the matrices that vLLM packs from them. An engine that continued without weights would fail and sample nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from vllm.platforms import current_platform

CACHE, WEIGHTS = "kv_cache", "weights"
"""vLLM's names of what sleeps and wakes."""

_DERIVED = "cpu_linear"
"""Attribute that holds the packed matrix by which vLLM's CPU layers multiply, often the only copy."""


class CpuSleep:
    """Mixed into vLLM's worker by `WeightExtension`; `self` is the worker. A no-op on other platforms."""

    model_runner: Any
    vllm_config: Any
    _given_back: dict[str, list[tuple[torch.UntypedStorage, int]]]

    def give_back_memory(self, level: int) -> None:
        """Free the cache, and at level 2 the weights. Idempotent."""
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
        """Allocate `parts` again: an empty cache, uninitialized weights."""
        given_back = getattr(self, "_given_back", {})
        for part in parts:
            for storage, size in given_back.pop(part, ()):
                storage.resize_(size)
                torch.tensor([], dtype=torch.uint8).set_(storage).fill_(0 if part == CACHE else 0xFF)

    def _caches(self) -> Iterator[Tensor]:
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        return (cache for layer in layers if isinstance(cache := getattr(layer, "kv_cache", None), Tensor))


def _release(tensors: Iterator[Tensor]) -> list[tuple[torch.UntypedStorage, int]]:
    """Free the storage of tensors, each once, and keep its size."""
    storages = {storage.data_ptr(): storage for tensor in tensors if (storage := tensor.untyped_storage()).nbytes()}
    found = [(storage, storage.nbytes()) for storage in storages.values()]
    for storage, _ in found:
        storage.resize_(0)
    return found


def _layers_with_matrices(model: nn.Module) -> Iterator[nn.Module]:
    return (layer for layer in model.modules() if hasattr(layer, _DERIVED))


def _refuse(*arguments: object) -> NoReturn:
    raise RuntimeError("this engine's weights were freed when it went to sleep, and no others have been loaded")


def _silence_vllm() -> None:
    """Silence vLLM's warning that its worker ignores the call."""
    logger = logging.getLogger("vllm.v1.worker.cpu_worker")
    if not logger.filters:
        logger.addFilter(lambda record: "sleep mode is not supported" not in record.getMessage())
