"""What runs inside vLLM's workers beside vLLM: loading weights so that every matrix derived from them follows."""

from __future__ import annotations

from typing import Any

import torch


class WeightExtension:
    """Mixed into vLLM's worker by `worker_extension_cls`; `self` is the worker."""

    model_runner: Any

    def load_policy(self, path: str) -> None:
        """Load the weights in folder `path` in place.

        On a CPU vLLM packs `lm_head` into a matrix of its own, and does not pack it again where it is tied to the
        embeddings: without the second step log-probabilities were wrong by as much as 1.0 (measured).
        """
        self.model_runner.reload_weights(weights_path=path)
        head = getattr(self.model_runner.get_model(), "lm_head", None)
        if head is not None and hasattr(head, "cpu_linear"):
            _repack(head)


def _repack(layer: torch.nn.Module) -> None:
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
