"""Cold-start supervised fine-tuning: trajectories whose observations are masked, so that only decisions are learnt."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rl.config import RayConfig, SftConfig
from rl.learning.supervised import train_on_examples
from rl.learning.training import OnMetric, TrainResult
from warehouse.records import Example


def train_sft(
    policy_path: Path,
    examples: Iterable[Example],
    output: Path,
    config: SftConfig,
    seed: int,
    on_metric: OnMetric,
    ray: RayConfig | None = None,
) -> TrainResult:
    """Train the policy in `policy_path` on the trained tokens of `examples`, as `train_cpt` does on all of them.

    An example that was sampled says by its token ids and mask which these are, any other one by its segments.
    """
    return train_on_examples(policy_path, examples, output, config, seed, on_metric, masked=config.mask_observations, ray=ray)
