"""Advantages of groups of trajectories: how much better each one did than the others on its task.

All are pure functions of `rewards` (groups, samples) and `valid` (groups, samples; False for invalid trajectories and for
padding) and give advantages of the same shape. What is not valid is in no mean and in no deviation, and its advantage is 0.
So is every advantage of a group with fewer than two valid trajectories, or with equal rewards: it has nothing to compare.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Estimator = Callable[[Tensor, Tensor], Tensor]

DEVIATION_FLOOR = 1e-4
"""Added to the standard deviation in GRPO, as TRL does."""


def grpo(rewards: Tensor, valid: Tensor) -> Tensor:
    """(r - mean) / (std + 1e-4) within the group, std with Bessel's correction. DeepSeekMath, arXiv 2402.03300, §4.1."""
    centred, count = _centred(rewards, valid)
    variance = (centred**2).sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt() + DEVIATION_FLOOR)


def dr_grpo(rewards: Tensor, valid: Tensor) -> Tensor:
    """r - mean within the group, not divided by the deviation, which favours too easy and too hard tasks. Dr. GRPO, arXiv 2503.20783."""
    return _centred(rewards, valid)[0]


def rloo(rewards: Tensor, valid: Tensor) -> Tensor:
    """r less the mean of the *other* trajectories of the group, which is n / (n - 1) (r - mean). RLOO, arXiv 2402.14740, eq. 8."""
    centred, count = _centred(rewards, valid)
    return centred * count / (count - 1).clamp(min=1)


ESTIMATORS: dict[str, Estimator] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}


def has_signal(rewards: Tensor, valid: Tensor) -> Tensor:
    """Which groups (shape (groups,)) have two valid trajectories with different rewards."""
    highest = rewards.masked_fill(~valid, -torch.inf).amax(dim=1)
    lowest = rewards.masked_fill(~valid, torch.inf).amin(dim=1)
    return highest > lowest


def _centred(rewards: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards less the mean of the valid ones of their group, 0 where there is no signal; and counts (groups, 1)."""
    used = valid & has_signal(rewards, valid).unsqueeze(1)
    count = valid.sum(dim=1, keepdim=True).to(rewards.dtype)
    mean = torch.where(used, rewards, 0).sum(dim=1, keepdim=True) / count.clamp(min=1)
    return torch.where(used, rewards - mean, 0), count
