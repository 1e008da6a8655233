"""What runs inside vLLM's workers beside vLLM: loading weights so that every matrix derived from them follows.

vLLM's workers import this module before anything else of this project, and so know the transfer over gloo.
"""

from __future__ import annotations

from typing import Any

from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

from rl.engines.gloo import repack_head


class WeightExtension:
    """Mixed into vLLM's worker by `worker_extension_cls`; `self` is the worker."""

    model_runner: Any
    model_config: Any
    vllm_config: Any
    _weight_update_active: bool

    def load_policy(self, path: str) -> None:
        """Load the weights in folder `path` in place."""
        self.model_runner.reload_weights(weights_path=path)
        repack_head(self.model_runner.get_model())

    def abandon_transfer(self) -> None:
        """Forget a transfer that broke off. Weights that have come stay, among old ones: the model is nobody's until others are loaded."""
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.model_runner.get_model(), self.model_config)  # type: ignore[no-untyped-call]
        self._weight_update_active = False
