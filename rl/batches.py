"""Batches of reinforcement learning: trajectories as sampled become rows of token ids, masks, log-probabilities and advantages.

Token ids are taken as they were sampled. Observations stand among the actions and are masked. Invalid trajectories take part in
nothing. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import fmean, pstdev
from typing import TypeVar

import torch
from torch import Tensor

from rl.estimators import Estimator, has_signal
from warehouse.records import Outcome, Trajectory, Turn

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory to learn from; `completion_ids`, `action_mask` and `logprobs` have the same length.

    `action_mask` is 1 where the policy sampled the token and 0 on observations, where `logprobs` are 0.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    action_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float

    @property
    def action_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(self.action_mask)


def is_valid(trajectory: Trajectory) -> bool:
    """Whether a trajectory may take part in rewards, means and losses: it has a reward, no fault, and at least one action token."""
    has_actions = any(turn.action_ids for turn in trajectory.turns)
    return trajectory.outcome is not Outcome.INVALID and trajectory.reward is not None and has_actions


def rows_of(trajectories: Sequence[Trajectory], estimator: Estimator) -> list[Row]:
    """The rows of the valid ones of `trajectories`, with advantages within the group of each task."""
    kept = [trajectory for trajectory in trajectories if is_valid(trajectory)]
    return [_row(trajectory, advantage) for trajectory, advantage in zip(kept, _advantages(kept, estimator), strict=True)]


def split_rows(rows: Sequence[Row], parts: int) -> list[list[Row]]:
    """`rows` in `parts` lists of about equal number and similar length within each, so that little is padded; some may be empty."""
    ordered = sorted(rows, key=lambda row: len(row.prompt_ids) + len(row.completion_ids))
    bounds = [len(ordered) * part // parts for part in range(parts + 1)]
    return [ordered[start:end] for start, end in pairwise(bounds)]


def collate_rows(rows: Sequence[Row], pad_token_id: int) -> dict[str, Tensor]:
    """The tensors that TRL's GRPO loss takes: prompts padded on the left (B, P), completions on the right (B, C).

    `completion_mask` is 0 on padding alone and `tool_mask` 0 on observations and padding; `advantages` has the shape (B,).
    """
    prompt_width = max(len(row.prompt_ids) for row in rows)
    width = max(len(row.completion_ids) for row in rows)
    return {
        "prompt_ids": torch.tensor([_pad_left(row.prompt_ids, prompt_width, pad_token_id) for row in rows]),
        "prompt_mask": torch.tensor([_pad_left([1] * len(row.prompt_ids), prompt_width, 0) for row in rows]),
        "completion_ids": torch.tensor([_pad_right(row.completion_ids, width, pad_token_id) for row in rows]),
        "completion_mask": torch.tensor([_pad_right([1] * len(row.completion_ids), width, 0) for row in rows]),
        "tool_mask": torch.tensor([_pad_right(row.action_mask, width, 0) for row in rows]),
        "old_per_token_logps": torch.tensor([_pad_right(row.logprobs, width, 0.0) for row in rows]),
        "advantages": torch.tensor([row.advantage for row in rows]),
    }


def describe(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Figures of a step's trajectories: all but `valid` are over the valid ones, and absent where there is none.

    `zero_variance` is the share of groups that have nothing to compare, among groups with a valid trajectory.
    """
    kept = [trajectory for trajectory in trajectories if is_valid(trajectory)]
    figures = {"trajectories": float(len(trajectories)), "valid": len(kept) / len(trajectories) if trajectories else 0.0}
    if not kept:
        return figures
    rewards, valid = _grouped(kept)[1:]
    observed = [trajectory.reward or 0.0 for trajectory in kept]
    return {
        **figures,
        "reward": fmean(observed),
        "reward_std": pstdev(observed),
        "success": fmean(trajectory.outcome is Outcome.SUCCESS for trajectory in kept),
        "turns": fmean(len(trajectory.turns) for trajectory in kept),
        "tool_calls": fmean(_tool_calls(trajectory) for trajectory in kept),
        "action_tokens": fmean(sum(len(turn.action_ids) for turn in trajectory.turns) for trajectory in kept),
        "zero_variance": 1 - has_signal(rewards, valid).float().mean().item(),
    }


def _tool_calls(trajectory: Trajectory) -> int:
    return sum(call.tool != "answer" for turn in trajectory.turns for call in turn.calls)


def _row(trajectory: Trajectory, advantage: float) -> Row:
    """One trajectory with actions and observations in turn; what follows the last action is of no use to the loss and left out."""
    pieces = [piece for turn in trajectory.turns for piece in _pieces(turn)]
    while not pieces[-1].is_action:
        pieces.pop()
    return Row(
        prompt_ids=trajectory.prompt_ids,
        completion_ids=tuple(chain.from_iterable(piece.ids for piece in pieces)),
        action_mask=tuple(chain.from_iterable([int(piece.is_action)] * len(piece.ids) for piece in pieces)),
        logprobs=tuple(chain.from_iterable(piece.logprobs for piece in pieces)),
        advantage=advantage,
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_action: bool


def _pieces(turn: Turn) -> list[_Piece]:
    """The action and the observation of a turn, without empty ones."""
    if len(turn.action_ids) != len(turn.action_logprobs):
        raise ValueError(f"turn {turn.index} has {len(turn.action_ids)} action ids but {len(turn.action_logprobs)} log-probabilities")
    action = _Piece(turn.action_ids, turn.action_logprobs, is_action=True)
    observation = _Piece(turn.observation_ids, (0.0,) * len(turn.observation_ids), is_action=False)
    return [piece for piece in (action, observation) if piece.ids]


def _advantages(trajectories: Sequence[Trajectory], estimator: Estimator) -> list[float]:
    """One advantage for each of `trajectories`, in their order."""
    places, rewards, valid = _grouped(trajectories)
    values = estimator(rewards, valid).tolist()
    return [values[group][sample] for group, sample in places]


def _grouped(trajectories: Iterable[Trajectory]) -> tuple[list[tuple[int, int]], Tensor, Tensor]:
    """The place (group, sample) of each trajectory, and rewards and validity of shape (groups, samples), padded."""
    groups: dict[str, list[float]] = {}
    numbers: dict[str, int] = {}
    places = []
    for trajectory in trajectories:
        group = groups.setdefault(trajectory.task_key, [])
        places.append((numbers.setdefault(trajectory.task_key, len(numbers)), len(group)))
        group.append(float(trajectory.reward or 0.0))
    width = max((len(group) for group in groups.values()), default=1)
    padded = torch.tensor([_pad_right(group, width, math.nan) for group in groups.values()]).reshape(len(groups), width)
    return places, padded.nan_to_num(0.0), ~padded.isnan()


def _pad_left(values: Sequence[Number], width: int, padding: Number) -> list[Number]:
    return [padding] * (width - len(values)) + list(values)


def _pad_right(values: Sequence[Number], width: int, padding: Number) -> list[Number]:
    return list(values) + [padding] * (width - len(values))
