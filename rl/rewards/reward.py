"""The reward of a trajectory, from the verifier's verdict to the number that RL trains on.

`reward_trajectories` is the one place where a trajectory's outcome and reward are set. A verifier grades each attempt (its value stands in
a `Score`), reward functions look at the graded attempts, and the reward is the sum of their values times their weights (each stands in a
`RewardPart`). A fault is invalid and has no reward; so has a trajectory of which a reward function does not know the value. What is no
finite number is no value: one of them in a group would leave no mean and no advantage of all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from eval.graders.base import verify_all
from eval.graders.choice import SHORT_ANSWERS, Verifiers
from eval.turn_judges import TurnJudge
from rl.rewards.config import RewardConfig
from warehouse.errors import RequestError
from warehouse.plugins import Registry
from warehouse.records import Outcome, RewardPart, Score, Task, Trajectory


@dataclass(frozen=True, slots=True)
class GradedAttempt:
    """A trajectory as it was sampled, the task that it tried, and the verifier's score of it."""

    task: Task
    trajectory: Trajectory
    score: Score


@dataclass(frozen=True, slots=True)
class RewardValue:
    """The value of one attempt, and of each of its turns where the value is the sum of these; or an error and no value."""

    value: float | None
    turns: tuple[float, ...] = ()
    error: str | None = None

    @classmethod
    def of_turns(cls, turns: Sequence[float]) -> RewardValue:
        """A value that is the sum of the turns' values."""
        return cls(sum(turns), tuple(turns))

    @classmethod
    def unknown(cls, error: str) -> RewardValue:
        """No value, and why."""
        return cls(None, (), error)


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What reward functions may look at beside the attempts; `evidence` holds, by task, the titles of the documents that prove it.

    `turn_judge` is the judge of single turns, calibrated, where a reward function asks one; `verifiers` are those that graded the attempts.
    """

    config: RewardConfig
    evidence: Mapping[str, frozenset[str]] = field(default_factory=dict)
    turn_judge: TurnJudge | None = None
    verifiers: Verifiers = SHORT_ANSWERS


RewardFunction = Callable[[Sequence[GradedAttempt], RewardContext], list[RewardValue]]
"""A value for each of a step's attempts, in their order; pure, or as good as pure where a judge keeps what it said. All are given together,
for some functions look at whole groups.

Invalid attempts are not among them. What a function does not know is no zero: it says `RewardValue.unknown`.
"""

REWARD_FUNCTIONS = Registry(
    "part of the reward",
    {
        "outcome": "rl.rewards.functions:outcome",
        "signed_outcome": "rl.rewards.functions:signed_outcome",
        "format": "rl.rewards.functions:well_formed",
        "format_ladder": "rl.rewards.functions:format_ladder",
        "environment": "rl.rewards.functions:environment",
        "evidence": "rl.rewards.functions:evidence",
        "tool_success": "rl.rewards.functions:tool_success",
        "length": "rl.rewards.functions:length",
        "void_turns": "rl.rewards.functions:void_turns",
        "agreement": "rl.rewards.functions:agreement",
        "confidence": "rl.rewards.functions:confidence",
        "turn_judge": "rl.rewards.functions:turn_judge",
    },
    "agent_flywheel.rewards",
    arguments=("attempts", "context"),
)
"""Reward functions by the names that `rl.rewards.parts` calls them by."""

PRESETS: dict[str, dict[str, float]] = {
    "outcome": {"outcome": 1.0},
    "retool": {"signed_outcome": 1.0},
    "search_r1": {"outcome": 1.0},
    "search_r1_format": {"format_ladder": 1.0},
}
"""Weights by the names of `rl.rewards.preset`."""


class Rewarded(NamedTuple):
    """Trajectories with outcome and reward, the verifiers' scores, and the parts of the rewards, as the lake takes them."""

    trajectories: list[Trajectory]
    scores: list[Score]
    parts: list[RewardPart]


def reward_trajectories(
    tasks: Sequence[Task], trajectories: Sequence[Trajectory], verifiers: Verifiers, context: RewardContext | None = None
) -> Rewarded:
    """Grade trajectories and set their outcomes and rewards.

    Args:
        tasks: the task of each trajectory.
        verifiers: that of tasks that name none, and those that they may name.
        context: configuration of the reward functions; without one the reward is the verifier's value, as in evaluation.
    """
    graded = _grade(tasks, trajectories, verifiers)
    outcomes = [replace(each.trajectory, outcome=each.score.verdict, reward=each.score.value) for each in graded]
    scores = [each.score for each in graded]
    if context is None:
        return Rewarded(outcomes, scores, [])
    valid = [each for each in graded if each.score.verdict is not Outcome.INVALID]
    composed, parts = _compose(valid, replace(context, verifiers=verifiers))
    return Rewarded([composed.get(each.id, each) for each in outcomes], scores, parts)


def _grade(tasks: Sequence[Task], trajectories: Sequence[Trajectory], verifiers: Verifiers) -> list[GradedAttempt]:
    """The attempts with their scores; those of one verifier are judged together, for a judge answers many at once."""
    pairs = list(zip(tasks, trajectories, strict=True))
    chosen = [verifiers.of(task) for task in tasks]
    scores: dict[int, Score] = {}
    for verifier in {id(each): each for each in chosen}.values():
        places = [place for place, each in enumerate(chosen) if each is verifier]
        scores.update(zip(places, map(_finite_score, verify_all(verifier, [pairs[place] for place in places])), strict=True))
    return [GradedAttempt(task, trajectory, scores[place]) for place, (task, trajectory) in enumerate(pairs)]


def _finite_score(score: Score) -> Score:
    """The score, invalid where its value is no finite number."""
    if score.value is None or math.isfinite(score.value):
        return score
    return replace(score, value=None, verdict=Outcome.INVALID, error=f"{score.verifier} gave {score.value}, which is no finite number")


def _finite_value(name: str, value: RewardValue) -> RewardValue:
    """The value, unknown where it or that of a turn is no finite number."""
    wrong = next((each for each in (value.value, *value.turns) if each is not None and not math.isfinite(each)), None)
    return value if wrong is None else RewardValue.unknown(f"{name} gave {wrong}, which is no finite number")


def weights_of(config: RewardConfig) -> dict[str, float]:
    """The weight of each reward function that counts, by name."""
    return {name: weight for name, weight in {**PRESETS[config.preset], **config.parts}.items() if weight}


def find_functions(config: RewardConfig) -> dict[str, RewardFunction]:
    """The reward functions that count, by name.

    Raises:
        RequestError: where there is no such function, or none counts.
    """
    names = list(weights_of(config))
    if not names:
        raise RequestError("rl.rewards.parts takes every part out of the reward: give one of them a weight.")
    return {name: cast(RewardFunction, REWARD_FUNCTIONS.load(name)) for name in names}


def _compose(attempts: Sequence[GradedAttempt], context: RewardContext) -> tuple[dict[str, Trajectory], list[RewardPart]]:
    """The rewarded trajectories by id, and the parts of their rewards."""
    weights, functions = weights_of(context.config), find_functions(context.config)
    values = {name: [_finite_value(name, value) for value in function(attempts, context)] for name, function in functions.items()}
    rewarded: dict[str, Trajectory] = {}
    parts: list[RewardPart] = []
    for place, attempt in enumerate(attempts):
        own = {name: values[name][place] for name in functions}
        rewarded[attempt.trajectory.id] = _with_reward(attempt, own, weights)
        parts += [RewardPart(attempt.trajectory.id, name, weights[name], v.value, v.turns, v.error) for name, v in own.items()]
    return rewarded, parts


def _with_reward(attempt: GradedAttempt, values: Mapping[str, RewardValue], weights: Mapping[str, float]) -> Trajectory:
    known = {name: value.value for name, value in values.items() if value.value is not None}
    reward = sum(weights[name] * value for name, value in known.items()) if len(known) == len(values) else None
    by_turn = [(weights[name], value.turns) for name, value in values.items() if value.turns]
    turns = tuple(
        replace(turn, reward=sum(weight * shares[place] for weight, shares in by_turn) if by_turn else None)
        for place, turn in enumerate(attempt.trajectory.turns)
    )
    return replace(attempt.trajectory, turns=turns, outcome=attempt.score.verdict, reward=reward)
