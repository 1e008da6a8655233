"""Advantage estimators: group-relative, batch-relative, or with a critic. `ESTIMATORS` lists those without a critic.

Critic-free estimators are pure functions of `Groups` and return (groups, samples) or (groups, samples, turns). A group without signal
(fewer than two valid trajectories, or equal rewards) gets advantages of exactly 0 from `grpo`, `dr_grpo`, `rloo` and
`environment_deviation`.

Critic estimators take tensors of shape (rows, tokens); `mask` is True on action tokens. Observations and padding are skipped: they add no
discount and no reward, so the action token before an observation is followed by the one after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

DEVIATION_FLOOR = 1e-4
"""Added to the standard deviation in GRPO, as TRL does."""
BATCH_FLOOR = 1e-8
"""Added to the token-weighted standard deviation of the batch in REINFORCE++."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Trajectories grouped by task, padded to the largest group.

    Attributes:
        rewards: (groups, samples), per trajectory.
        valid: (groups, samples), False for invalid trajectories and padding, which every estimator ignores.
        tokens: (groups, samples), number of action tokens.
        environments: (groups,), environment index of each task.
        turn_rewards: (groups, samples, turns), summing to `rewards`.
        turns: (groups, samples, turns), True for turns that exist.
    """

    rewards: Tensor
    valid: Tensor
    tokens: Tensor
    environments: Tensor
    turn_rewards: Tensor
    turns: Tensor

    @classmethod
    def of(cls, rewards: Tensor, valid: Tensor, tokens: Tensor | None = None, environments: Tensor | None = None) -> Groups:
        """Build groups of one-turn trajectories; by default one token each and a single environment."""
        tokens = torch.ones_like(rewards) if tokens is None else tokens
        environments = torch.zeros(len(rewards), dtype=torch.long) if environments is None else environments
        return cls(rewards, valid, tokens, environments, rewards.unsqueeze(2), valid.unsqueeze(2))

    @property
    def counts(self) -> Tensor:
        """Valid trajectories per group, (groups, 1)."""
        return self.valid.sum(dim=1, keepdim=True).to(self.rewards.dtype)

    @property
    def compared(self) -> Tensor:
        """Valid trajectories whose group has at least two valid ones, (groups, samples)."""
        return self.valid & (self.counts >= 2)


Estimator = Callable[[Groups], Tensor]
"""Returns (groups, samples), or (groups, samples, turns)."""


def grpo(groups: Groups) -> Tensor:
    """(r - mean) / (std + 1e-4) within the group, std with Bessel's correction. DeepSeekMath, arXiv 2402.03300, §4.1."""
    centred = centre(groups)
    variance = (centred**2).sum(dim=1, keepdim=True) / (groups.counts - 1).clamp(min=1)
    return centred / (variance.sqrt() + DEVIATION_FLOOR)


def dr_grpo(groups: Groups) -> Tensor:
    """r - mean within the group, without GRPO's deviation, which favours too easy and too hard tasks. Dr. GRPO, arXiv 2503.20783."""
    return centre(groups)


def rloo(groups: Groups) -> Tensor:
    """r - mean of the *other* trajectories of the group = n / (n - 1) (r - mean). RLOO, arXiv 2402.14740, eq. 8."""
    return centre(groups) * groups.counts / (groups.counts - 1).clamp(min=1)


def has_signal(groups: Groups) -> Tensor:
    """Mask (groups,) of groups that have two valid trajectories with different rewards."""
    highest = groups.rewards.masked_fill(~groups.valid, -torch.inf).amax(dim=1)
    lowest = groups.rewards.masked_fill(~groups.valid, torch.inf).amin(dim=1)
    return highest > lowest


def centre(groups: Groups) -> Tensor:
    """Rewards minus the mean of the group's valid rewards; 0 in groups without signal."""
    used = groups.valid & has_signal(groups).unsqueeze(1)
    mean = torch.where(used, groups.rewards, 0).sum(dim=1, keepdim=True) / groups.counts.clamp(min=1)
    return torch.where(used, groups.rewards - mean, 0)


def reinforce_plus_plus(groups: Groups) -> Tensor:
    """(r - mean) / std, both token-weighted over the batch, so trajectories of easy tasks are above the mean and keep a gradient."""
    return normalize(groups.rewards, _token_weights(groups), _one_batch(groups), BATCH_FLOOR)


def reinforce_plus_plus_baseline(groups: Groups) -> Tensor:
    """r - group mean, then normalized over the tokens of the batch, with one deviation for all tasks."""
    return normalize(centre(groups), _token_weights(groups), _one_batch(groups), BATCH_FLOOR)


def _token_weights(groups: Groups) -> Tensor:
    return torch.where(groups.compared, groups.tokens, 0).to(groups.rewards.dtype)


def _one_batch(groups: Groups) -> Tensor:
    return torch.ones(len(groups.rewards), len(groups.rewards), dtype=torch.bool)


def task_normalized(groups: Groups) -> Tensor:
    """(A - mean) / (std + 1e-6) of GRPO's A, over all action tokens of the environment (AgentRL's task). arXiv 2510.04206, §3.2."""
    return normalize(grpo(groups), _token_weights(groups), _same_environment(groups), 1e-6)


def environment_deviation(groups: Groups) -> Tensor:
    """(r - group mean) / std of all rewards in the environment. ERPO of AutoForge, arXiv 2512.22857."""
    _, deviation = moments(groups.rewards, groups.compared.to(groups.rewards.dtype), _same_environment(groups))
    return centre(groups) / (deviation + DEVIATION_FLOOR)


def _same_environment(groups: Groups) -> Tensor:
    return groups.environments.unsqueeze(0) == groups.environments.unsqueeze(1)


def process(groups: Groups) -> Tensor:
    """GRPO with process supervision, (groups, samples, turns). DeepSeekMath, arXiv 2402.03300, §4.1.3.

    Turn rewards are normalized within the group; a turn's advantage is the sum of normalized rewards from that turn on. The verifier's
    reward belongs to the last turn.
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
    """(values - mean) / (std + `floor`); 0 where the weight or the deviation is 0.

    Args:
        values: (groups, samples).
        weights: (groups, samples), weights in mean and deviation.
        same: (groups, groups), True where two groups share mean and deviation.
    """
    mean, deviation = moments(values, weights, same)
    return torch.where((weights > 0) & (deviation > 0), (values - mean) / (deviation + floor), 0)


def moments(values: Tensor, weights: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and population standard deviation, each (groups, 1); 0 where the total weight is 0."""
    shared = same.to(values.dtype)
    total = shared @ weights.sum(dim=1, keepdim=True)
    counted = torch.where(weights > 0, values, 0)
    mean = shared @ (weights * counted).sum(dim=1, keepdim=True) / total.clamp(min=1)
    squares = torch.where(weights > 0, (values - mean) ** 2 * weights, 0)
    deviation = (shared @ squares.sum(dim=1, keepdim=True) / total.clamp(min=1)).sqrt()
    return mean, torch.where(deviation > 1e-6 * mean.abs(), deviation, 0)  # smaller deviations are rounding errors


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
"""Values of `rl.estimator` that need no critic."""


def gae(rewards: Tensor, values: Tensor, mask: Tensor, discount: float, decay: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns, 0 outside `mask`. GAE, arXiv 1506.02438, eq. 16; skips observations as AgentGym-RL does (arXiv 2509.08755).

    δ_t = r_t + γ V_(t+1) - V_t and A_t = δ_t + γλ A_(t+1), where t + 1 is the next action token; returns are A + V. V_t is the value of the
    state in which token t was generated; γ is `discount`, λ is `decay`.
    """
    never = torch.zeros_like(mask)
    return _backward(rewards, values, mask, never, discount, decay)


def bilevel_gae(
    rewards: Tensor, values: Tensor, mask: Tensor, turn_ends: Tensor, discount: float, decay: float, turn_discount: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, first over turns, then over the tokens of each turn. Bi-level GAE of RAGEN, arXiv 2504.20073, §3.

    At the last token of turn k: δ_k = R_k + Γ V_(k+1) - V_k and A_k = δ_k + Γλ A_(k+1), where V is taken at the last tokens of turns and
    R_k is the sum of the turn's rewards. Within a turn, apply `gae` with the single reward A_k + V_k at its last token and no value after
    it. Γ is `turn_discount`.

    Args:
        turn_ends: True at the last token of each turn. (RAGEN's own code infers turn ends from tokens with a reward and fails if the last
            token has none.)
    """
    ends = turn_ends & mask
    whole = torch.where(ends, _sums_of_turns(rewards, mask, ends), 0)
    _, targets = _backward(whole, values, ends, torch.zeros_like(ends), turn_discount, decay)
    return _backward(torch.where(ends, targets, 0), values, mask, ends, discount, decay)


def vtrace(
    rewards: Tensor, values: Tensor, log_ratios: Tensor, mask: Tensor, discount: float, decay: float, most: float, most_traced: float
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets, 0 outside `mask`. V-trace: IMPALA, arXiv 1802.01561, §4.1, eq. 1 and remark 1.

    v_s = V_s + δ_s + γ c_s (v_(s+1) - V_(s+1)) with δ_s = ρ_s (r_s + γ V_(s+1) - V_s), ρ = min(ρ̄, π / μ), c = λ min(c̄, π / μ); s + 1 is
    the next action token, and values after the last one are 0. The advantage is r_s + γ v_(s+1) - V_s; the loss applies the paper's factor
    ρ_s, as its ratio to the sampler or as truncated weight.

    Args:
        log_ratios: log π - log μ per token, with learner π and sampler μ.
        discount: γ.
        decay: λ (remark 2).
        most: ρ̄; the values' fixed point is that of a policy between μ and π.
        most_traced: c̄; limits how far value differences propagate back.
    """
    ratios = torch.where(mask, log_ratios, 0).to(values.dtype).exp()
    trusted, traced = ratios.clamp(max=most), decay * ratios.clamp(max=most_traced)
    advantages, targets = torch.zeros_like(values), torch.zeros_like(values)
    next_value = next_target = torch.zeros_like(values[:, 0])
    for token in reversed(range(values.size(1))):
        written, value, reward = mask[:, token], values[:, token], rewards[:, token]
        surprise = trusted[:, token] * (reward + discount * next_value - value)
        target = value + surprise + discount * traced[:, token] * (next_target - next_value)
        advantages[:, token] = torch.where(written, reward + discount * next_target - value, 0)
        targets[:, token] = torch.where(written, target, 0)
        next_value, next_target = torch.where(written, value, next_value), torch.where(written, target, next_target)
    return advantages, targets


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """(A - mean) / std over the tokens of `mask`; 0 elsewhere and where nothing varies."""
    count = mask.sum().clamp(min=1)
    mean = torch.where(mask, advantages, 0).sum() / count
    variance = torch.where(mask, (advantages - mean) ** 2, 0).sum() / count
    return torch.where(mask, (advantages - mean) / (variance + 1e-8).sqrt(), 0)


def _backward(rewards: Tensor, values: Tensor, mask: Tensor, ends: Tensor, discount: float, decay: float) -> tuple[Tensor, Tensor]:
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for token in reversed(range(values.size(1))):
        last, written = ends[:, token], mask[:, token]
        following = torch.where(last, 0, next_value)
        carried = torch.where(last, 0, next_advantage)
        advantage = rewards[:, token] + discount * following - values[:, token] + discount * decay * carried
        advantages[:, token] = torch.where(written, advantage, 0)
        next_value = torch.where(written, values[:, token], next_value)
        next_advantage = torch.where(written, advantage, next_advantage)
    return advantages, torch.where(mask, advantages + values, 0)


def _sums_of_turns(rewards: Tensor, mask: Tensor, ends: Tensor) -> Tensor:
    sums = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for token in range(rewards.size(1)):
        running = running + torch.where(mask[:, token], rewards[:, token], 0)
        sums[:, token] = running
        running = torch.where(ends[:, token], 0, running)
    return sums
