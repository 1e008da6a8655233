"""Mean and standard deviation with weights, over parts of a batch: what the estimators that look beyond one group share."""

from __future__ import annotations

import torch
from torch import Tensor


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
