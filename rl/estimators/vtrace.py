"""Advantages against a critic where an older policy sampled: V-trace. IMPALA, arXiv 1802.01561 (Espeholt et al. 2018), §4.1.

Tensors have the shape (rows, tokens). As in `gae`, `mask` is True where the policy wrote the token and all else is passed over.
"""

from __future__ import annotations

import torch
from torch import Tensor


def vtrace(
    rewards: Tensor, values: Tensor, log_ratios: Tensor, mask: Tensor, discount: float, decay: float, most: float, most_traced: float
) -> tuple[Tensor, Tensor]:
    """Advantages and targets of the value function, 0 on masked tokens. Eq. 1 of IMPALA, in the recursive form of its remark 1.

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
