"""Sleep of vLLM's workers on CPUs, which have none of their own: memory is given back here too, and taken again on waking.

vLLM's worker for CPUs takes the calls `sleep` and `wake_up` and ignores them; scheduler and executor heed them as on a GPU. So they are
made, and what this does stands beside them. Level 1 gives back the cache, for the weights are in the host's memory, where that level would
bring them; level 2 gives back the weights too. They are no numbers then until others are loaded, and the matrices that vLLM derives from
them cannot be multiplied with: an engine that went on without weights would fail, and sample nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from vllm.platforms import current_platform

CACHE, WEIGHTS = "kv_cache", "weights"
"""What sleeps and wakes, by vLLM's names."""

_DERIVED = "cpu_linear"
"""The attribute by which vLLM's layers multiply on CPUs; it holds a packed matrix, often the only one."""


class CpuSleep:
    """Mixed into vLLM's worker by `WeightExtension`; `self` is the worker. On other platforms it does nothing."""

    model_runner: Any
    vllm_config: Any
    _given_back: dict[str, list[tuple[torch.UntypedStorage, int]]]

    def give_back_memory(self, level: int) -> None:
        """Give back the cache, and at level 2 the weights; what is given back already stays so."""
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
        """Take back memory for `parts`: an empty cache, weights that are no numbers."""
        given_back = getattr(self, "_given_back", {})
        for part in parts:
            for storage, size in given_back.pop(part, ()):
                storage.resize_(size)
                torch.tensor([], dtype=torch.uint8).set_(storage).fill_(0 if part == CACHE else 0xFF)

    def _caches(self) -> Iterator[Tensor]:
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        return (cache for layer in layers if isinstance(cache := getattr(layer, "kv_cache", None), Tensor))


def _release(tensors: Iterator[Tensor]) -> list[tuple[torch.UntypedStorage, int]]:
    """Free the numbers of tensors, which stay as they are otherwise; each storage once, with the size that it had."""
    storages = {storage.data_ptr(): storage for tensor in tensors if (storage := tensor.untyped_storage()).nbytes()}
    found = [(storage, storage.nbytes()) for storage in storages.values()]
    for storage, _ in found:
        storage.resize_(0)
    return found


def _layers_with_matrices(model: nn.Module) -> Iterator[nn.Module]:
    return (layer for layer in model.modules() if hasattr(layer, _DERIVED))


def _refuse(*arguments: object) -> NoReturn:
    raise RuntimeError("the weights of this engine were given back as it went to sleep, and no others have been loaded")


def _silence_vllm() -> None:
    """Keep vLLM from warning at each call that its own worker ignores it."""
    logger = logging.getLogger("vllm.v1.worker.cpu_worker")
    if not logger.filters:
        logger.addFilter(lambda record: "sleep mode is not supported" not in record.getMessage())
