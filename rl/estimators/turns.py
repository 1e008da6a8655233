"""Advantages by turn: rewards of single turns (a process reward) folded into what follows from each of them."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.estimators.groups import DEVIATION_FLOOR, Groups


def process(groups: Groups) -> Tensor:
    """GRPO with process supervision, of shape (groups, samples, turns). DeepSeekMath, arXiv 2402.03300, §4.1.3.

    The rewards of all turns of a group are normalised together; the advantage of a turn is the sum of the normalised rewards from it on.
    The verifier's reward is that of the last turn.
    """
    used = groups.turns & groups.compared.unsqueeze(2)
    count = used.sum(dim=(1, 2), keepdim=True).clamp(min=1)
    mean = torch.where(used, groups.turn_rewards, 0).sum(dim=(1, 2), keepdim=True) / count
    centred = torch.where(used, groups.turn_rewards - mean, 0)
    variance = (centred**2).sum(dim=(1, 2), keepdim=True) / (count - 1).clamp(min=1)
    return torch.where(used, returns_to_go(centred / (variance.sqrt() + DEVIATION_FLOOR), 1.0), 0)


def returns_to_go(rewards: Tensor, discount: float) -> Tensor:
    """G_k = r_k + discount · G_(k+1) along the last dimension."""
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[..., 0])
    for turn in reversed(range(rewards.size(-1))):
        following = rewards[..., turn] + discount * following
        returns[..., turn] = following
    return returns
