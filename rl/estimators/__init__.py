"""Advantages: how much better each action was than what was to be expected. `ESTIMATORS` names those that need no critic.

What is not valid is in no mean and in no deviation and has an advantage of 0, and so has every group with fewer than two valid
trajectories.
"""

from __future__ import annotations

from rl.estimators.batches import reinforce_plus_plus, reinforce_plus_plus_baseline
from rl.estimators.environments import environment_deviation, task_normalized
from rl.estimators.gae import bilevel_gae, gae, whiten
from rl.estimators.groups import Estimator, Groups, dr_grpo, grpo, has_signal, rloo
from rl.estimators.turns import process, returns_to_go
from rl.estimators.vtrace import vtrace

ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "task_normalized": task_normalized,
    "environment_deviation": environment_deviation,
    "process": process,
}
"""What `rl.estimator` may name where no critic is wanted."""

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "Groups",
    "bilevel_gae",
    "dr_grpo",
    "environment_deviation",
    "gae",
    "grpo",
    "has_signal",
    "process",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "returns_to_go",
    "rloo",
    "task_normalized",
    "vtrace",
    "whiten",
]
