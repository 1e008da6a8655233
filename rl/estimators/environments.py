"""Advantages where tasks of several environments share a batch: each environment's rewards have a scale of their own.

Advantages have the shape (groups, samples).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl.estimators.groups import DEVIATION_FLOOR, Groups, centre, grpo
from rl.estimators.moments import moments, normalize


def task_normalized(groups: Groups) -> Tensor:
    """GRPO's advantages A, then (A - mean) / (std + 1e-6) over all action tokens of the environment. AgentRL, arXiv 2510.04206, §3.2.

    What AgentRL calls a task is an environment here: ALFWorld, DB, OS.
    """
    weights = torch.where(groups.compared, groups.tokens, 0).to(groups.rewards.dtype)
    return normalize(grpo(groups), weights, _same(groups), 1e-6)


def environment_deviation(groups: Groups) -> Tensor:
    """(r - mean of the group) / std of the rewards of all trajectories of the environment. ERPO of AutoForge, arXiv 2512.22857."""
    _, deviation = moments(groups.rewards, groups.compared.to(groups.rewards.dtype), _same(groups))
    return centre(groups) / (deviation + DEVIATION_FLOOR)


def _same(groups: Groups) -> Tensor:
    return groups.environments.unsqueeze(0) == groups.environments.unsqueeze(1)
