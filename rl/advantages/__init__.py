"""Advantages: how much better each action was than what was to be expected. `ESTIMATORS` names those that need no critic.

What is not valid is in no mean and in no deviation and has an advantage of 0, and so has every group with fewer than two valid
trajectories.
"""

from __future__ import annotations

from rl.advantages.critics import bilevel_gae, gae, vtrace, whiten
from rl.advantages.groups import (
    ESTIMATORS,
    Estimator,
    Groups,
    dr_grpo,
    environment_deviation,
    grpo,
    has_signal,
    process,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    returns_to_go,
    rloo,
    task_normalized,
)

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
