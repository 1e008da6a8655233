"""Which stage of a step computes in which precision, and what follows from it for reinforcement learning.

Log-probabilities of engine and learner agree to some 1e-5 where both compute in float32, and to a few hundredths where either computes in
bfloat16. So a check of the engines' weights has a bound of its own for each, and where the two differ the rollouts are those of a slightly
other policy, which truncated importance sampling accounts for.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from rl.devices import cpu_has_bfloat16
from rl.training.config import ReinforceConfig
from rl.training.optimizer_config import OptimizerConfig

Settings = TypeVar("Settings", bound=ReinforceConfig)
BOUNDS = {"float32": 1e-3, "bfloat16": 0.2}
"""Mean absolute difference of log-probabilities, in nats, above which an engine has other weights than the learner."""
SMALL_POLICY = 20_000_000
"""Parameters below which matrices are too small for bfloat16 to gain anything on a CPU."""


def computes_in_bfloat16(config: OptimizerConfig, parameters: int | None = None) -> bool:
    """Whether a forward pass of the learner of `config` is one in bfloat16.

    `auto` is that on GPUs, but for those that this machine has and that lack it; and on a CPU that has it (AVX-512 BF16 or AMX) for a
    policy of `parameters` that is not small.
    """
    if config.precision != "auto":
        return config.precision == "bfloat16"
    if config.learner.gpus:
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported()
    return parameters is not None and parameters >= SMALL_POLICY and cpu_has_bfloat16()


def settled(config: Settings, engine_dtype: str, parameters: int) -> Settings:
    """`config` with what depends on the precision of engine and learner decided: the correction's weights, and the bound of the check.

    Args:
        engine_dtype: as in `rollout.engine.dtype`.
        parameters: of the policy.
    """
    learner = "bfloat16" if computes_in_bfloat16(config, parameters) else "float32"
    changes: dict[str, Any] = {}
    if config.correction.weights == "auto":
        weights = "truncated" if learner != engine_dtype else "none"
        changes["correction"] = config.correction.model_copy(update={"weights": weights})
    if config.health.weight_difference is None:
        both = learner == engine_dtype == "float32"
        bound = BOUNDS["float32" if both else "bfloat16"]
        changes["health"] = config.health.model_copy(update={"weight_difference": bound})
    return config.model_copy(update=changes)
