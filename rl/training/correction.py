"""What is done about tokens that an older policy sampled: weights by importance, truncated or masked, and rejection by threshold.

Tensors have the shape (rows, tokens). `log_ratios` are log π - log μ, π the learner's policy before the step and μ what sampled the token;
`mask` is True where the policy wrote it. A ratio is taken per token, or per sequence as the product of its tokens' (`sequence`) or as
their geometric mean (`mean`, which does not grow with length). All functions are pure; no gradient goes through any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rl.training.batches import Row
from rl.training.config import CorrectionConfig

Level = Literal["token", "sequence", "mean"]

FURTHEST = 20.0
"""Log-ratios are held within ± this, so that none of their exponentials overflows."""


def ratios(log_ratios: Tensor, mask: Tensor, level: Level) -> Tensor:
    """π / μ of each token, or of its whole sequence: Π_t π_t / μ_t, or the geometric mean of that over the sequence's tokens."""
    known = torch.where(mask, log_ratios.double(), 0)
    if level != "token":
        known = known.sum(dim=1, keepdim=True)
    if level == "mean":
        known = known / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return known.clamp(-FURTHEST, FURTHEST).exp().expand(mask.shape)


def truncated(log_ratios: Tensor, mask: Tensor, level: Level, most: float) -> Tensor:
    """w = min(π / μ, `most`), 0 outside the mask: truncated importance sampling. Ionides 2008; IMPALA, arXiv 1802.01561, §4.1."""
    return torch.where(mask, ratios(log_ratios, mask, level).clamp(max=most), 0)


def masked(log_ratios: Tensor, mask: Tensor, level: Level, least: float, most: float) -> Tensor:
    """w = π / μ where that is within [`least`, `most`], else 0: a token outside has no gradient and still counts in the means.

    IcePop (Zhao et al. 2025), as in Ring-1T, arXiv 2510.18855.
    """
    found = ratios(log_ratios, mask, level)
    return torch.where(mask & (found >= least) & (found <= most), found, 0)


def accepted(log_ratios: Tensor, mask: Tensor, level: Level, least: float, most: float) -> Tensor:
    """The mask without what is rejected: tokens, or whole sequences, with a ratio outside [`least`, `most`] count in nothing.

    Rejection in the place of weights, as in verl's rollout correction (k1 with bounds log `least` and log `most`).
    """
    found = ratios(log_ratios, mask, level)
    return mask & (found >= least) & (found <= most)


@dataclass(frozen=True, slots=True)
class Corrected:
    """Rows after correction, the trajectories that were rejected as a whole, and the share of action tokens rejected."""

    rows: tuple[Row, ...]
    rejected: tuple[Row, ...]
    rejected_tokens: float


def correct(rows: Sequence[Row], learners: Sequence[Sequence[float]], config: CorrectionConfig) -> Corrected:
    """`rows` as `config` wants them corrected.

    With weights, a row's advantages are multiplied by them, for w min(r A, clip(r) A) is min(r wA, clip(r) wA); and its log-probabilities
    become the learner's, so that the loss's own ratio and clip begin at 1 (the decoupled objective of Hilton et al. 2022, arXiv 2110.00641,
    §3). What is rejected leaves the mask.

    Args:
        learners: for each row, log π of each token of its completion by the learner, before the step.
    """
    done = [_correct(row, logprobs, config) for row, logprobs in zip(rows, learners, strict=True)]
    before, after = (sum(row.action_tokens for row in each) for each in (rows, done))
    rejected = tuple(row for row, left in zip(rows, done, strict=True) if not left.action_tokens)
    return Corrected(tuple(row for row in done if row.action_tokens), rejected, 1 - after / before if before else 0.0)


def _correct(row: Row, learner: Sequence[float], config: CorrectionConfig) -> Row:
    mask = torch.tensor([row.action_mask]).bool()
    log_ratios = torch.tensor([learner], dtype=torch.float64) - torch.tensor([row.logprobs], dtype=torch.float64)
    if config.reject is not None:
        kept = accepted(log_ratios, mask, config.reject, config.reject_below, config.reject_above)
        row = replace(row, action_mask=tuple(kept[0].int().tolist()))
    if config.weights not in ("truncated", "masked"):
        return row
    if config.weights == "truncated":
        weights = truncated(log_ratios, mask, config.level, config.above)
    else:
        weights = masked(log_ratios, mask, config.level, config.below, config.above)
    advantages = (torch.tensor([row.advantages], dtype=torch.float64) * weights)[0]
    own = torch.where(mask, torch.tensor([learner], dtype=torch.float64), 0)[0]
    return replace(row, advantages=tuple(advantages.tolist()), logprobs=tuple(own.tolist()), sampled_logprobs=row.logprobs)
