"""Advantages within a group: how much better each trajectory did than the others on its task.

All are pure functions of `Groups` and give advantages of shape (groups, samples). Where a group has nothing to compare, because
fewer than two of it are valid or all their rewards are equal, its advantages are exact zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

DEVIATION_FLOOR = 1e-4
"""Added to the standard deviation in GRPO, as TRL does."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Trajectories in groups of one task each, padded to the largest group.

    `rewards` (groups, samples) are those of whole trajectories; `valid` of the same shape is False for invalid ones and for padding, and
    what stands there in the other tensors is not looked at. `tokens` (groups, samples) counts action tokens, `environments` (groups,)
    numbers each task's environment. `turn_rewards` and `turns` (groups, samples, turns) are what each turn earned, which sums up to
    `rewards`, and which turns there are.
    """

    rewards: Tensor
    valid: Tensor
    tokens: Tensor
    environments: Tensor
    turn_rewards: Tensor
    turns: Tensor

    @classmethod
    def of(cls, rewards: Tensor, valid: Tensor, tokens: Tensor | None = None, environments: Tensor | None = None) -> Groups:
        """Groups of trajectories of one turn each; of one token and of one environment where nothing else is said."""
        tokens = torch.ones_like(rewards) if tokens is None else tokens
        environments = torch.zeros(len(rewards), dtype=torch.long) if environments is None else environments
        return cls(rewards, valid, tokens, environments, rewards.unsqueeze(2), valid.unsqueeze(2))

    @property
    def counts(self) -> Tensor:
        """How many of each group are valid, of shape (groups, 1)."""
        return self.valid.sum(dim=1, keepdim=True).to(self.rewards.dtype)

    @property
    def compared(self) -> Tensor:
        """What is valid and has another valid one in its group, of shape (groups, samples)."""
        return self.valid & (self.counts >= 2)


Estimator = Callable[[Groups], Tensor]
"""Advantages of shape (groups, samples), or (groups, samples, turns) where they differ from turn to turn."""


def grpo(groups: Groups) -> Tensor:
    """(r - mean) / (std + 1e-4) within the group, std with Bessel's correction. DeepSeekMath, arXiv 2402.03300, §4.1."""
    centred = centre(groups)
    variance = (centred**2).sum(dim=1, keepdim=True) / (groups.counts - 1).clamp(min=1)
    return centred / (variance.sqrt() + DEVIATION_FLOOR)


def dr_grpo(groups: Groups) -> Tensor:
    """r - mean within the group, not divided by the deviation, which favours too easy and too hard tasks. Dr. GRPO, arXiv 2503.20783."""
    return centre(groups)


def rloo(groups: Groups) -> Tensor:
    """r less the mean of the *other* trajectories of the group, which is n / (n - 1) (r - mean). RLOO, arXiv 2402.14740, eq. 8."""
    return centre(groups) * groups.counts / (groups.counts - 1).clamp(min=1)


def has_signal(groups: Groups) -> Tensor:
    """Which groups (shape (groups,)) have two valid trajectories with different rewards."""
    highest = groups.rewards.masked_fill(~groups.valid, -torch.inf).amax(dim=1)
    lowest = groups.rewards.masked_fill(~groups.valid, torch.inf).amin(dim=1)
    return highest > lowest


def centre(groups: Groups) -> Tensor:
    """Rewards less the mean of the valid ones of their group, 0 where there is nothing to compare."""
    used = groups.valid & has_signal(groups).unsqueeze(1)
    mean = torch.where(used, groups.rewards, 0).sum(dim=1, keepdim=True) / groups.counts.clamp(min=1)
    return torch.where(used, groups.rewards - mean, 0)
