"""Figures of log-probabilities: how far the learner is from the sampler, and whether what a policy writes depends on what it was asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from rl.learning.batches import UNKNOWN, Row, is_valid
from warehouse.records import Trajectory


def ratio_figures(log_ratios: Tensor) -> dict[str, float]:
    """Mean importance ratio and effective share of samples, of log π_learner - log π_sampler of action tokens, shape (tokens,).

    The effective share is (Σ w)² / (n Σ w²) with w = e^ratio: 1 where all weigh the same, 1 / n where one of them is all (Kish 1965).
    """
    weights = log_ratios.double().clamp(-20, 20).exp()
    share = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
    return {"importance_ratio": weights.mean().item(), "effective_samples": share.item()}


def staleness_figures(rows: Sequence[Row], version: int) -> dict[str, float]:
    """By how many versions of the weights the sampled tokens of `rows` are behind `version`: the mean, and that of the oldest.

    Nothing where no row has a token of a known version.
    """
    behind = [version - each for row in rows for each in row.versions if each != UNKNOWN]
    return {"staleness": fmean(behind), "staleness_max": float(max(behind))} if behind else {}


def crossed(trajectories: Sequence[Trajectory], tasks: int) -> list[Row]:
    """The first actions of up to `tasks` tasks under each other's prompts: row i · n + j is action i under prompt j, for n tasks.

    Of each task the first valid trajectory that begins with an action is taken; tasks by key. Empty where fewer than two tasks have one.
    """
    firsts: dict[str, Trajectory] = {}
    for trajectory in sorted(trajectories, key=lambda each: (each.task_key, each.sample)):
        if is_valid(trajectory) and trajectory.turns[0].action_ids:
            firsts.setdefault(trajectory.task_key, trajectory)
    chosen = list(firsts.values())[:tasks]
    if len(chosen) < 2:
        return []
    return [_row(prompt.prompt_ids, action.turns[0].action_ids) for action in chosen for prompt in chosen]


def prompt_information(scores: Tensor) -> float:
    """Mutual information of prompts and first actions, as a share of its highest, log N. RAGEN-2, arXiv 2604.06268.

    I = mean_i [log p(z_i | x_i) - log (1/N Σ_j p(z_i | x_j))], of `scores` (actions, prompts) = log p(z_i | x_j). At 0 actions are the same
    whatever was asked (template collapse, which entropy does not show), at 1 each belongs to its prompt alone.
    """
    count = len(scores)
    mixture = torch.logsumexp(scores.double(), dim=1) - math.log(count)
    return ((scores.double().diagonal() - mixture).mean() / math.log(count)).item()


def _row(prompt_ids: tuple[int, ...], action_ids: tuple[int, ...]) -> Row:
    size = len(action_ids)
    zeros = (0.0,) * size
    return Row(prompt_ids, action_ids, (1,) * size, zeros, zeros, (*[0] * (size - 1), 1), (0.0,))
