"""Agentic continual pre-training: packed text of every kind (documents, plans, reasoning, decisions), loss on all tokens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rl.config import CptConfig
from rl.learning.supervised import train_on_examples
from rl.learning.training import OnMetric, TrainResult
from warehouse.records import Example


def train_cpt(
    policy_path: Path, examples: Iterable[Example], output: Path, config: CptConfig, seed: int, on_metric: OnMetric
) -> TrainResult:
    """Train the policy in `policy_path` on all tokens of `examples`; the same call goes on where an earlier one was stopped.

    The result lies in `output`, its checkpoints below that. Figures: examples, examples left out because too long, tokens, trained tokens,
    rows, the share of their room that is used (`packed`), steps, seconds (of this call) and the last loss in nats a token.
    """
    return train_on_examples(policy_path, examples, output, config, seed, on_metric, masked=False)
