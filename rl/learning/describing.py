"""Figures of a step's trajectories: what they came to, and the signs of health that can be read from them alone. All functions are pure.

Every figure but `valid` is over the valid trajectories, and absent where there is none: an unknown is never a zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import fmean, pstdev

from rl.estimators import has_signal
from rl.learning.batches import group, is_valid
from warehouse.records import ANSWER, NOT_RUN, Call, Outcome, StopReason, Trajectory, Turn

OK = "ok"
"""The outcome of a call whose tool gave what was asked for."""


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


def is_readable(turn: Turn) -> bool:
    """Whether the action of a turn could be read as a call or an answer."""
    return bool(turn.calls)


def tool_calls(turns: Iterable[Turn]) -> list[Call]:
    """The calls of tools that were run; an answer is none."""
    return [call for turn in turns for call in turn.calls if call.tool != ANSWER and call.outcome != NOT_RUN]


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
    calls = tool_calls(turn for trajectory in kept for turn in trajectory.turns)
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
        "format": fmean(is_readable(turn) for turn in chain.from_iterable(turns.values())),
        **{f"format/turn_{number}": fmean(map(is_readable, of_turn)) for number, of_turn in sorted(turns.items())},
        **{f"tokens/turn_{number}": fmean(len(turn.action_ids) for turn in of_turn) for number, of_turn in sorted(turns.items())},
    }


def _logprobs(trajectory: Trajectory) -> list[float]:
    return [value for turn in trajectory.turns for value in turn.action_logprobs]
