"""Figures of a step: what its trajectories came to, how far the learner is from the sampler, what actions say of their prompts.

Those of trajectories are over the valid ones, and absent where there is none: an unknown is never a zero.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from statistics import fmean, pstdev

import torch
from torch import Tensor

from rl.advantages import has_signal
from rl.rewards.functions import OK
from rl.training.batches import UNKNOWN, Row, group, is_valid
from warehouse.records import Outcome, StopReason, Trajectory, Turn


def describe(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Figures of a step.

    `reward_deviation` is the mean over groups of the deviation within each, `zero_variance` the share of groups with nothing to compare,
    `truncated` the share that the horizon ended. `sampled_entropy` is the mean of -log π of the action tokens as they were sampled, in
    nats: an estimate of the entropy that is there also where nothing is learnt from a step. `correct_logprob` is the mean log-probability
    of the action tokens of successful trajectories: its decay comes before collapse (LLD, arXiv 2512.04220). `format/turn_k` and
    `tokens/turn_k` are the share of readable actions and the mean number of tokens of turn k, from 1.
    """
    kept = [trajectory for trajectory in trajectories if is_valid(trajectory)]
    figures = {"trajectories": float(len(trajectories)), "valid": len(kept) / len(trajectories) if trajectories else 0.0}
    if not kept:
        return figures
    return {**figures, **_rewards(kept), **_actions(kept), **_by_turn(kept)}


def _rewards(kept: Sequence[Trajectory]) -> dict[str, float]:
    groups = group(kept, {})[1]
    rewards = [trajectory.reward or 0.0 for trajectory in kept]
    within = [pstdev(row[valid].tolist()) for row, valid in zip(groups.rewards, groups.valid, strict=True) if valid.any()]
    return {
        "reward": fmean(rewards),
        "reward_std": pstdev(rewards),
        "reward_deviation": fmean(within),
        "success": fmean(trajectory.outcome is Outcome.SUCCESS for trajectory in kept),
        "zero_variance": 1 - has_signal(groups).double().mean().item(),
    }


def _actions(kept: Sequence[Trajectory]) -> dict[str, float]:
    calls = [call for trajectory in kept for turn in trajectory.turns for call in turn.tool_calls]
    correct = [value for trajectory in kept if trajectory.outcome is Outcome.SUCCESS for value in _logprobs(trajectory)]
    return {
        "turns": fmean(len(trajectory.turns) for trajectory in kept),
        "truncated": fmean(trajectory.stop_reason is StopReason.MAX_TURNS for trajectory in kept),
        "tool_calls": len(calls) / len(kept),
        "action_tokens": fmean(sum(len(turn.action_ids) for turn in trajectory.turns) for trajectory in kept),
        "sampled_entropy": -fmean(value for trajectory in kept for value in _logprobs(trajectory)),
        **({"tool_success": fmean(call.outcome == OK for call in calls)} if calls else {}),
        **({"correct_logprob": fmean(correct)} if correct else {}),
    }


def _by_turn(kept: Sequence[Trajectory]) -> dict[str, float]:
    turns: dict[int, list[Turn]] = defaultdict(list)
    for turn in chain.from_iterable(trajectory.turns for trajectory in kept):
        turns[turn.index + 1].append(turn)
    return {
        "format": fmean(turn.is_readable for turn in chain.from_iterable(turns.values())),
        **{f"format/turn_{number}": fmean(turn.is_readable for turn in of_turn) for number, of_turn in sorted(turns.items())},
        **{f"tokens/turn_{number}": fmean(len(turn.action_ids) for turn in of_turn) for number, of_turn in sorted(turns.items())},
    }


def _logprobs(trajectory: Trajectory) -> list[float]:
    return [value for turn in trajectory.turns for value in turn.action_logprobs]


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
