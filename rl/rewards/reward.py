"""Rewards: from the verifier's verdict to the number that RL trains on, with the built-in reward functions.

Only `reward_trajectories` sets outcome and reward. A verifier grades each attempt (a `Score`), reward functions evaluate graded attempts,
and the reward is their weighted sum (a `RewardPart` each). Faults are invalid and have no reward; a trajectory with an unknown part has no
reward either. Non-finite numbers count as unknown. A function with per-turn values is a process reward: its value is their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from eval.graders.base import verify_all
from eval.graders.choice import SHORT_ANSWERS, Verifiers
from eval.graders.unsupervised import Agreement, Confidence
from eval.judges import Judge, Verdict, cases_of
from rl.rewards.config import RewardConfig
from warehouse.errors import RequestError
from warehouse.plugins import Registry
from warehouse.records import Failure, Outcome, RewardPart, Score, Task, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class GradedAttempt:
    """A trajectory with its task and the verifier's score."""

    task: Task
    trajectory: Trajectory
    score: Score


@dataclass(frozen=True, slots=True)
class RewardValue:
    """Value of an attempt, with the values of its turns if it is their sum; or an error and no value."""

    value: float | None
    turns: tuple[float, ...] = ()
    error: str | None = None

    @classmethod
    def of_turns(cls, turns: Sequence[float]) -> RewardValue:
        return cls(sum(turns), tuple(turns))

    @classmethod
    def unknown(cls, error: str) -> RewardValue:
        return cls(None, (), error)


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What reward functions may use besides the attempts.

    Attributes:
        evidence: by task key, titles of the documents that prove the answer.
        turn_judge: calibrated judge of single turns, if configured.
        verifiers: the verifiers that graded the attempts.
    """

    config: RewardConfig
    evidence: Mapping[str, frozenset[str]] = field(default_factory=dict)
    turn_judge: Judge | None = None
    verifiers: Verifiers = SHORT_ANSWERS


RewardFunction = Callable[[Sequence[GradedAttempt], RewardContext], list[RewardValue]]
"""Values of all valid attempts of a step, in order; deterministic. Return `RewardValue.unknown` for unknown values, never 0."""

REWARD_FUNCTIONS = Registry(
    "part of the reward",
    {
        "outcome": "rl.rewards.reward:outcome",
        "signed_outcome": "rl.rewards.reward:signed_outcome",
        "format": "rl.rewards.reward:well_formed",
        "format_ladder": "rl.rewards.reward:format_ladder",
        "environment": "rl.rewards.reward:environment",
        "evidence": "rl.rewards.reward:evidence",
        "tool_success": "rl.rewards.reward:tool_success",
        "length": "rl.rewards.reward:length",
        "void_turns": "rl.rewards.reward:void_turns",
        "agreement": "rl.rewards.reward:agreement",
        "confidence": "rl.rewards.reward:confidence",
        "turn_judge": "rl.rewards.reward:turn_judge",
    },
    "agent_flywheel.rewards",
    arguments=("attempts", "context"),
)
"""Names for `rl.rewards.parts`."""

PRESETS: dict[str, dict[str, float]] = {
    "outcome": {"outcome": 1.0},
    "retool": {"signed_outcome": 1.0},
    "search_r1": {"outcome": 1.0},
    "search_r1_format": {"format_ladder": 1.0},
}
"""Weights by `rl.rewards.preset`."""


class Rewarded(NamedTuple):
    """Trajectories with outcome and reward, verifier scores, and reward parts."""

    trajectories: list[Trajectory]
    scores: list[Score]
    parts: list[RewardPart]


def reward_trajectories(
    tasks: Sequence[Task], trajectories: Sequence[Trajectory], verifiers: Verifiers, context: RewardContext | None = None
) -> Rewarded:
    """Grade trajectories and set their outcomes and rewards.

    Args:
        tasks: the task of each trajectory.
        verifiers: the default verifier, and those that tasks may name.
        context: for reward functions; None: the reward is the verifier's value, as in evaluation.
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
    """Score attempts in one batch per verifier, since judges answer many at once."""
    pairs = list(zip(tasks, trajectories, strict=True))
    chosen = [verifiers.of(task) for task in tasks]
    scores: dict[int, Score] = {}
    for verifier in {id(each): each for each in chosen}.values():
        places = [place for place, each in enumerate(chosen) if each is verifier]
        scores.update(zip(places, map(_finite_score, verify_all(verifier, [pairs[place] for place in places])), strict=True))
    return [GradedAttempt(task, trajectory, scores[place]) for place, (task, trajectory) in enumerate(pairs)]


def _finite_score(score: Score) -> Score:
    if score.value is None or math.isfinite(score.value):
        return score
    return replace(
        score, value=None, verdict=Outcome.INVALID, error=f"{score.verifier} returned {score.value}, which is not a finite number"
    )


def _finite_value(name: str, value: RewardValue) -> RewardValue:
    wrong = next((each for each in (value.value, *value.turns) if each is not None and not math.isfinite(each)), None)
    return value if wrong is None else RewardValue.unknown(f"{name} returned {wrong}, which is not a finite number")


def weights_of(config: RewardConfig) -> dict[str, float]:
    """Non-zero weights by reward function."""
    return {name: weight for name, weight in {**PRESETS[config.preset], **config.parts}.items() if weight}


def find_functions(config: RewardConfig) -> dict[str, RewardFunction]:
    """Load the reward functions with a weight, by name. Raises RequestError if one is unknown, or none has a weight."""
    names = list(weights_of(config))
    if not names:
        raise RequestError("rl.rewards.parts removes every part of the reward: give one a weight.")
    return {name: cast(RewardFunction, REWARD_FUNCTIONS.load(name)) for name in names}


def _compose(attempts: Sequence[GradedAttempt], context: RewardContext) -> tuple[dict[str, Trajectory], list[RewardPart]]:
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


OK = "ok"
"""Outcome of a successful call."""


def outcome(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """The verifier's value; with exact match this is Search-R1's reward (arXiv 2503.09516, §3.4)."""
    return [_of_score(attempt.score, "no verifier has scored it") for attempt in attempts]


def signed_outcome(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """+1 for a success, else -1. ReTool, arXiv 2504.11536, §2.2; also ToRL."""
    return [RewardValue(1.0 if attempt.score.verdict is Outcome.SUCCESS else -1.0) for attempt in attempts]


def well_formed(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """1 if every action is readable and the last one answers, else 0."""
    return [RewardValue(float(_is_well_formed(attempt))) for attempt in attempts]


def format_ladder(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """Right and well formed 1, right 0.8, wrong and well formed 0.2, wrong 0.1, no answer 0. Search-R1, `qa_em_format.py`."""
    return [RewardValue(_rung(attempt)) for attempt in attempts]


def environment(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """The environment's own reward of each turn's calls."""
    return [RewardValue.of_turns([sum(call.reward or 0.0 for call in turn.calls) for turn in each.trajectory.turns]) for each in attempts]


def evidence(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """Per turn, the fraction of required documents found for the first time; sums to 1 if all are found.

    Required are the documents that state the facts on the task's path. A retrieval reward, as in arXiv 2505.15117.
    """
    return [_documents_found(attempt, context.evidence.get(attempt.task.key, frozenset())) for attempt in attempts]


def tool_success(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """Per turn, the fraction of successful calls divided by the number of turns, so that extra calls earn nothing."""
    return [RewardValue.of_turns([_share_ok(turn) / len(each.trajectory.turns) for turn in each.trajectory.turns]) for each in attempts]


def void_turns(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """-1 / number of turns for each turn with an unreadable action."""
    by_turn = ([0.0 if turn.is_readable else -1 / len(each.trajectory.turns) for turn in each.trajectory.turns] for each in attempts)
    return [RewardValue.of_turns(turns) for turns in by_turn]


def length(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """Minus the fraction of `rewards.length_tokens` used by action tokens, at least -1."""
    tokens = [sum(len(turn.action_ids) for turn in attempt.trajectory.turns) for attempt in attempts]
    return [RewardValue(-min(1.0, count / context.config.length_tokens)) for count in tokens]


def agreement(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """Fraction of the group that gave the same answer; 0 without an answer. TTRL, arXiv 2504.16084."""
    verifier = Agreement(verifiers=context.verifiers)
    return [_of_score(score) for score in verifier.verify_all([(attempt.task, attempt.trajectory) for attempt in attempts])]


def confidence(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """Geometric mean of the token probabilities of the answering action; 0 without an answer. RLSC, arXiv 2506.06395."""
    return [_of_score(score) for score in Confidence().verify_all([(attempt.task, attempt.trajectory) for attempt in attempts])]


def turn_judge(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """Fraction of turns that a judge finds useful, by turn (`eval/judges.py`); unknown if a turn has no verdict."""
    if context.turn_judge is None:
        return [RewardValue.unknown("no turn judge is available: set its model under evaluation.judge")] * len(attempts)
    cases = [cases_of(attempt.task, attempt.trajectory) for attempt in attempts]
    verdicts = iter(context.turn_judge.judge([case for own in cases for case in own]))
    return [_of_verdicts([next(verdicts) for _ in own]) for own in cases]


def _of_verdicts(verdicts: Sequence[Verdict | Failure]) -> RewardValue:
    if not verdicts:
        return RewardValue.unknown("it has no turn to judge")
    for number, verdict in enumerate(verdicts):
        if isinstance(verdict, Failure):
            return RewardValue.unknown(f"turn {number} could not be judged: {verdict.kind}: {verdict.reason}")
    useful = [isinstance(verdict, Verdict) and verdict.verdict == "useful" for verdict in verdicts]
    return RewardValue.of_turns([float(each) / len(useful) for each in useful])


def _of_score(score: Score, otherwise: str = "it could not be judged") -> RewardValue:
    return RewardValue.unknown(score.error or otherwise) if score.value is None else RewardValue(score.value)


def _is_well_formed(attempt: GradedAttempt) -> bool:
    return attempt.trajectory.answer is not None and all(turn.is_readable for turn in attempt.trajectory.turns)


def _rung(attempt: GradedAttempt) -> float:
    if attempt.trajectory.answer is None:
        return 0.0
    right = attempt.score.verdict is Outcome.SUCCESS
    if _is_well_formed(attempt):
        return 1.0 if right else 0.2
    return 0.8 if right else 0.1


def _documents_found(attempt: GradedAttempt, required: frozenset[str]) -> RewardValue:
    if not required:
        return RewardValue.unknown(f"task {attempt.task.key} has no known supporting documents")
    missing = set(required)
    turns = []
    for turn in attempt.trajectory.turns:
        found = {title for title in missing if any(_has_title(call.observation, title) for call in turn.tool_calls)}
        missing -= found
        turns.append(len(found) / len(required))
    return RewardValue.of_turns(turns)


def _has_title(observation: str, title: str) -> bool:
    """Whether an observation contains a passage with that title; a passage begins with its title on a line of its own."""
    lines = (line for line in observation.splitlines() if line.startswith(title))
    return any(not line[len(title) : len(title) + 1].isalnum() for line in lines)


def _share_ok(turn: Turn) -> float:
    return sum(call.outcome == OK for call in turn.tool_calls) / len(turn.tool_calls) if turn.tool_calls else 0.0
