"""Advantages against the whole batch: REINFORCE++, with and without the baseline of the group (arXiv 2501.03262, §3).

Mean and deviation are over the action tokens of the batch, so a longer trajectory counts for more in them. Advantages have the shape
(groups, samples).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl.estimators.groups import Groups, centre
from rl.estimators.moments import normalize

FLOOR = 1e-8


def reinforce_plus_plus(groups: Groups) -> Tensor:
    """(r - mean) / std over the tokens of the batch: an easy task's trajectories are all above the mean, and keep a gradient."""
    return normalize(groups.rewards, _weights(groups), _everything(groups), FLOOR)


def reinforce_plus_plus_baseline(groups: Groups) -> Tensor:
    """r - mean of the group, then normalised over the tokens of the batch: one deviation for all tasks in the place of one for each."""
    return normalize(centre(groups), _weights(groups), _everything(groups), FLOOR)


def _weights(groups: Groups) -> Tensor:
    return torch.where(groups.compared, groups.tokens, 0).to(groups.rewards.dtype)


def _everything(groups: Groups) -> Tensor:
    return torch.ones(len(groups.rewards), len(groups.rewards), dtype=torch.bool)
