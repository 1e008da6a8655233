"""The reward of a trajectory: its parts by name, each times its weight, and every one of them a record of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import cast

from eval.verifier import Attempt
from rl.learning.config import RewardConfig
from rl.rewards.outcomes import format_ladder, outcome, signed_outcome, well_formed
from rl.rewards.part import Grounds, Part, Value
from rl.rewards.processes import environment, evidence, length, tool_success, void_turns
from rl.rewards.unsupervised import agreement, confidence
from warehouse.errors import RequestError
from warehouse.records import Outcome, RewardPart, Trajectory

PARTS: dict[str, Part] = {
    "outcome": outcome,
    "signed_outcome": signed_outcome,
    "format": well_formed,
    "format_ladder": format_ladder,
    "environment": environment,
    "evidence": evidence,
    "tool_success": tool_success,
    "agreement": agreement,
    "confidence": confidence,
    "length": length,
    "void_turns": void_turns,
}
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
    return {name: _find(name) for name in names}


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


def _find(name: str) -> Part:
    if name in PARTS:
        return PARTS[name]
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise RequestError(f"there is no part of the reward {name!r}; name one of {', '.join(PARTS)}, or give module:attribute.")
    try:
        return cast(Part, getattr(import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise RequestError(f"the part of the reward {name!r} cannot be imported: {error}.") from error
