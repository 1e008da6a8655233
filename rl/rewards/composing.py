"""The reward of a trajectory: its parts by name, each times its weight, and every one of them a record of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from eval.verifier import Attempt
from rl.learning.config import RewardConfig
from rl.rewards.part import Grounds, Part, Value
from warehouse.errors import RequestError
from warehouse.plugins import Registry
from warehouse.records import Outcome, RewardPart, Trajectory

PARTS = Registry(
    "part of the reward",
    {
        "outcome": "rl.rewards.outcomes:outcome",
        "signed_outcome": "rl.rewards.outcomes:signed_outcome",
        "format": "rl.rewards.outcomes:well_formed",
        "format_ladder": "rl.rewards.outcomes:format_ladder",
        "environment": "rl.rewards.processes:environment",
        "evidence": "rl.rewards.processes:evidence",
        "tool_success": "rl.rewards.processes:tool_success",
        "length": "rl.rewards.processes:length",
        "void_turns": "rl.rewards.processes:void_turns",
        "agreement": "rl.rewards.unsupervised:agreement",
        "confidence": "rl.rewards.unsupervised:confidence",
    },
    "agent_flywheel.rewards",
)
"""Parts by the names that the configuration calls them by. A judge is one of `module:attribute`."""

PRESETS: dict[str, dict[str, float]] = {
    "outcome": {"outcome": 1.0},
    "retool": {"signed_outcome": 1.0},
    "search_r1": {"outcome": 1.0},
    "search_r1_format": {"format_ladder": 1.0},
}
"""Weights by the names of `rl.rewards.preset`."""


def weights_of(config: RewardConfig) -> dict[str, float]:
    """The weight of each part that counts."""
    return {name: weight for name, weight in {**PRESETS[config.preset], **config.parts}.items() if weight}


def find_parts(config: RewardConfig) -> dict[str, Part]:
    """The parts that count, by name.

    Raises:
        RequestError: where there is no such part, or none counts.
    """
    names = list(weights_of(config))
    if not names:
        raise RequestError("rl.rewards.parts takes every part out of the reward: give one of them a weight.")
    return {name: cast(Part, PARTS.load(name)) for name in names}


def compose(attempts: Sequence[Attempt], grounds: Grounds) -> tuple[list[Trajectory], list[RewardPart]]:
    """The trajectories with their composed reward, whole and by turn, and the parts that it was made of.

    A trajectory of which a part has no value is left without a reward; its outcome stays. Invalid ones stay as they are.
    """
    weights, parts = weights_of(grounds.config), find_parts(grounds.config)
    judged = [attempt for attempt in attempts if attempt[1].outcome is not Outcome.INVALID]
    values = {name: part(judged, grounds) for name, part in parts.items()}
    composed: dict[str, Trajectory] = {}
    records: list[RewardPart] = []
    for place, (_, trajectory) in enumerate(judged):
        own = {name: values[name][place] for name in parts}
        composed[trajectory.id] = _rewarded(trajectory, own, weights)
        records += [RewardPart(trajectory.id, name, weights[name], v.value, v.turns, v.error) for name, v in own.items()]
    return [composed.get(trajectory.id, trajectory) for _, trajectory in attempts], records


def _rewarded(trajectory: Trajectory, values: Mapping[str, Value], weights: Mapping[str, float]) -> Trajectory:
    known = {name: value.value for name, value in values.items() if value.value is not None}
    reward = sum(weights[name] * value for name, value in known.items()) if len(known) == len(values) else None
    by_turn = [(weights[name], value.turns) for name, value in values.items() if value.turns]
    turns = tuple(
        replace(turn, reward=sum(weight * shares[place] for weight, shares in by_turn) if by_turn else None)
        for place, turn in enumerate(trajectory.turns)
    )
    return replace(trajectory, turns=turns, reward=reward)
