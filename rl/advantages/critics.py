"""Advantages against a critic: generalised advantage estimation over tokens, over turns and tokens, and V-trace for older samplers.

Tensors have the shape (rows, tokens). `mask` is True where the policy wrote the token; observations and padding are passed over: they
neither discount nor add anything, so that the token before an observation is followed by the one after it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(rewards: Tensor, values: Tensor, mask: Tensor, discount: float, decay: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns, 0 on masked tokens. GAE, arXiv 1506.02438, eq. 16; skipping as in AgentGym-RL (arXiv 2509.08755).

    δ_t = r_t + γ V_(t+1) - V_t and A_t = δ_t + γλ A_(t+1), where t + 1 is the next token that the policy wrote; returns are A + V.

    Args:
        rewards: read on the policy's tokens alone.
        values: V of the state that each token was written in.
        discount: γ.
        decay: λ.
    """
    never = torch.zeros_like(mask)
    return _backward(rewards, values, mask, never, discount, decay)


def bilevel_gae(
    rewards: Tensor, values: Tensor, mask: Tensor, turn_ends: Tensor, discount: float, decay: float, turn_discount: float
) -> tuple[Tensor, Tensor]:
    """Advantages over turns first, then over the tokens of each turn. RAGEN, arXiv 2504.20073, §3 (bi-level GAE).

    At the last token of turn k: δ_k = R_k + Γ V_(k+1) - V_k and A_k = δ_k + Γλ A_(k+1), with V at the last tokens of the turns and R_k the
    rewards of the turn. The tokens of a turn then have A by `gae` with the reward A_k + V_k at the turn's end and nothing after it.

    Args:
        turn_ends: True at the last token of each turn, which the policy wrote. RAGEN's own code takes the tokens with a reward for turn
            ends: turns without one vanish, and it fails where the last token has none.
        turn_discount: Γ.
    """
    ends = turn_ends & mask
    whole = torch.where(ends, _sums_of_turns(rewards, mask, ends), 0)
    _, targets = _backward(whole, values, ends, torch.zeros_like(ends), turn_discount, decay)
    return _backward(torch.where(ends, targets, 0), values, mask, ends, discount, decay)


def vtrace(
    rewards: Tensor, values: Tensor, log_ratios: Tensor, mask: Tensor, discount: float, decay: float, most: float, most_traced: float
) -> tuple[Tensor, Tensor]:
    """Advantages and targets of the value function, 0 on masked tokens. V-trace: IMPALA, arXiv 1802.01561, §4.1, eq. 1 and remark 1.

    v_s = V_s + δ_s + γ c_s (v_(s+1) - V_(s+1)) with δ_s = ρ_s (r_s + γ V_(s+1) - V_s), ρ = min(ρ̄, π / μ), c = λ min(c̄, π / μ); s + 1 is
    the next token that the policy wrote, and what follows the last is worth nothing. The advantage is r_s + γ v_(s+1) - V_s. The ρ_s that
    the paper's policy gradient has before it is not in it: in the loss it is the ratio to the sampler, or the truncated weight.

    Args:
        log_ratios: log π - log μ of each token, π the learner's policy and μ what sampled it.
        discount: γ.
        decay: λ (the paper's remark 2).
        most: ρ̄; the fixed point of the values is that of a policy between μ and π, π's own where it is without bound.
        most_traced: c̄; how far a difference is carried back.
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
    """(A - mean) / std over the policy's tokens, 0 elsewhere and where nothing varies."""
    count = mask.sum().clamp(min=1)
    mean = torch.where(mask, advantages, 0).sum() / count
    variance = torch.where(mask, (advantages - mean) ** 2, 0).sum() / count
    return torch.where(mask, (advantages - mean) / (variance + 1e-8).sqrt(), 0)


def _backward(rewards: Tensor, values: Tensor, mask: Tensor, ends: Tensor, discount: float, decay: float) -> tuple[Tensor, Tensor]:
    """The recursion of GAE from the last token to the first; after a token of `ends` nothing follows."""
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
    """At each turn end, the sum of the rewards of that turn's tokens; running sums elsewhere."""
    sums = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for token in range(rewards.size(1)):
        running = running + torch.where(mask[:, token], rewards[:, token], 0)
        sums[:, token] = running
        running = torch.where(ends[:, token], 0, running)
    return sums
