"""Advantages of whole trajectories and of their turns: how much better each did than the others on its task, or than the batch.

All are pure functions of `Groups` and give advantages of shape (groups, samples), or (groups, samples, turns). Where a group has nothing
to compare, because fewer than two of it are valid or all their rewards are equal, its advantages are exact zeros, but for those against
the whole batch, where an easy task's trajectories are all above the mean and keep a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

DEVIATION_FLOOR = 1e-4
"""Added to the standard deviation in GRPO, as TRL does."""
BATCH_FLOOR = 1e-8
"""Added to the standard deviation over the tokens of a batch, in REINFORCE++."""


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


def reinforce_plus_plus(groups: Groups) -> Tensor:
    """(r - mean) / std over the tokens of the batch: an easy task's trajectories are all above the mean, and keep a gradient."""
    return normalize(groups.rewards, _token_weights(groups), _one_batch(groups), BATCH_FLOOR)


def reinforce_plus_plus_baseline(groups: Groups) -> Tensor:
    """r - mean of the group, then normalised over the tokens of the batch: one deviation for all tasks in the place of one for each."""
    return normalize(centre(groups), _token_weights(groups), _one_batch(groups), BATCH_FLOOR)


def _token_weights(groups: Groups) -> Tensor:
    return torch.where(groups.compared, groups.tokens, 0).to(groups.rewards.dtype)


def _one_batch(groups: Groups) -> Tensor:
    return torch.ones(len(groups.rewards), len(groups.rewards), dtype=torch.bool)


def task_normalized(groups: Groups) -> Tensor:
    """GRPO's advantages A, then (A - mean) / (std + 1e-6) over all action tokens of the environment. AgentRL, arXiv 2510.04206, §3.2.

    What AgentRL calls a task is an environment here: ALFWorld, DB, OS.
    """
    return normalize(grpo(groups), _token_weights(groups), _same_environment(groups), 1e-6)


def environment_deviation(groups: Groups) -> Tensor:
    """(r - mean of the group) / std of the rewards of all trajectories of the environment. ERPO of AutoForge, arXiv 2512.22857."""
    _, deviation = moments(groups.rewards, groups.compared.to(groups.rewards.dtype), _same_environment(groups))
    return centre(groups) / (deviation + DEVIATION_FLOOR)


def _same_environment(groups: Groups) -> Tensor:
    return groups.environments.unsqueeze(0) == groups.environments.unsqueeze(1)


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


def normalize(values: Tensor, weights: Tensor, same: Tensor, floor: float) -> Tensor:
    """(values - mean) / (std + `floor`), 0 where the weight is 0 or nothing varies.

    Args:
        values: of shape (groups, samples).
        weights: of that shape: how much each counts in the mean and in the deviation, 0 for what takes no part.
        same: of shape (groups, groups), True where two groups share one mean and one deviation.
    """
    mean, deviation = moments(values, weights, same)
    return torch.where((weights > 0) & (deviation > 0), (values - mean) / (deviation + floor), 0)


def moments(values: Tensor, weights: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and population standard deviation, each of shape (groups, 1); 0 where no weight is."""
    shared = same.to(values.dtype)
    total = shared @ weights.sum(dim=1, keepdim=True)
    counted = torch.where(weights > 0, values, 0)
    mean = shared @ (weights * counted).sum(dim=1, keepdim=True) / total.clamp(min=1)
    squares = torch.where(weights > 0, (values - mean) ** 2 * weights, 0)
    deviation = (shared @ squares.sum(dim=1, keepdim=True) / total.clamp(min=1)).sqrt()
    return mean, torch.where(deviation > 1e-6 * mean.abs(), deviation, 0)  # else it is rounding


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
