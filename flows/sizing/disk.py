"""What an iteration writes to the disk, the lake left out: `flows.preflight.disk_needed` says how much it keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flows.config import FlywheelConfig
from flows.preflight import OPTIMISER_STATES
from flows.sizing.times import StageTime, published_bytes
from rl.hardware import FLOAT32, Architecture, adapter_parameters, bytes_of
from rl.learner.config import OptimizerConfig


def bytes_written(policy: Architecture, config: FlywheelConfig, stages: Sequence[StageTime]) -> dict[str, int]:
    """Bytes of the first iteration by what they are: policies, checkpoints, published weights; of stages whose steps are known.

    Checkpoints that `save_minutes` asks for come on top.
    """
    settings = config.for_turn(1)
    written = {"policies": FLOAT32 * policy.parameters, "checkpoints": 0, "published weights": 0}
    for stage in stages:
        own: OptimizerConfig = getattr(settings, stage.stage)
        steps = stage.steps or 0
        trained = policy.parameters if own.lora is None else adapter_parameters(policy, own.lora.rank)
        written["policies"] += bytes_of(own.policy_dtype) * policy.parameters
        written["checkpoints"] += math.ceil(steps / own.save_every) * (1 + OPTIMISER_STATES) * FLOAT32 * trained
        if stage.stage == "rl":
            versions = steps + 1 if config.rollout.engine.transfer == "files" else max(steps - 1, 0) // own.save_every
            written["published weights"] += versions * published_bytes(policy, config, settings)
    return written
