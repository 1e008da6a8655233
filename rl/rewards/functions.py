"""The reward functions that come with the project: of the verdict, of single turns, and of what needs no accepted answer.

A reward function that falls on single turns is a process reward: its value is the sum of the turns' values.
"""

from __future__ import annotations

from collections.abc import Sequence

from eval.graders.unsupervised import Agreement, Confidence
from eval.turn_judges import TurnVerdict, cases_of
from rl.rewards.reward import GradedAttempt, RewardContext, RewardValue
from warehouse.records import Failure, Outcome, Score, Turn

OK = "ok"
"""The outcome of a call whose tool gave what was asked for."""


def outcome(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """The verifier's value; with exact match as the verifier this is Search-R1's reward (arXiv 2503.09516, §3.4)."""
    return [_of_score(attempt.score, "no verifier has spoken") for attempt in attempts]


def signed_outcome(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """+1 for a success, else -1. ReTool, arXiv 2504.11536, §2.2; ToRL has the same."""
    return [RewardValue(1.0 if attempt.score.verdict is Outcome.SUCCESS else -1.0) for attempt in attempts]


def well_formed(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """1 where every action could be read and the last gave an answer, else 0."""
    return [RewardValue(float(_is_well_formed(attempt))) for attempt in attempts]


def format_ladder(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """Right and well formed 1, right 0.8, wrong and well formed 0.2, wrong 0.1, no answer 0. Search-R1, `qa_em_format.py`.

    There, «well formed» is that think, search, information and answer follow one another; here, that every action could be read.
    """
    return [RewardValue(_rung(attempt)) for attempt in attempts]


def environment(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """What the environment itself gave for each turn, by its calls."""
    return [RewardValue.of_turns([sum(call.reward or 0.0 for call in turn.calls) for turn in each.trajectory.turns]) for each in attempts]


def evidence(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """For each turn, the share of the required documents that its calls found and no earlier turn had; 1 in all where all were found.

    Required are the documents that state the facts along the task's path. A retrieval reward, as in arXiv 2505.15117.
    """
    return [_documents_found(attempt, context.evidence.get(attempt.task.key, frozenset())) for attempt in attempts]


def tool_success(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """For each turn, the share of its tool calls that succeeded, divided by the number of turns; so a call more earns nothing by itself."""
    return [RewardValue.of_turns([_share_ok(turn) / len(each.trajectory.turns) for turn in each.trajectory.turns]) for each in attempts]


def void_turns(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """A penalty on each turn whose action could not be read: -1 divided by the number of turns."""
    by_turn = ([0.0 if turn.is_readable else -1 / len(each.trajectory.turns) for turn in each.trajectory.turns] for each in attempts)
    return [RewardValue.of_turns(turns) for turns in by_turn]


def length(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """A penalty on action tokens: minus their share of `rewards.length_tokens`, and -1 at most."""
    tokens = [sum(len(turn.action_ids) for turn in attempt.trajectory.turns) for attempt in attempts]
    return [RewardValue(-min(1.0, count / context.config.length_tokens)) for count in tokens]


def agreement(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """The share of the group that gave the same answer; 0 without one. TTRL, arXiv 2504.16084."""
    verifier = Agreement(verifiers=context.verifiers)
    return [_of_score(score) for score in verifier.verify_all([(attempt.task, attempt.trajectory) for attempt in attempts])]


def confidence(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """The geometric mean of the probabilities of the tokens of the answer's action; 0 without an answer. RLSC, arXiv 2506.06395."""
    return [_of_score(score) for score in Confidence().verify_all([(attempt.task, attempt.trajectory) for attempt in attempts])]


def turn_judge(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """For each turn that a judge calls useful 1 divided by the number of turns, else 0: in all the share of useful turns.

    A process reward by a model (`eval/turn_judges.py`). A turn that it has no verdict on leaves the trajectory without a reward.
    """
    if context.turn_judge is None:
        return [RewardValue.unknown("no judge of turns is open: name its model under evaluation.judge")] * len(attempts)
    cases = [cases_of(attempt.task, attempt.trajectory) for attempt in attempts]
    verdicts = iter(context.turn_judge.judge([case for own in cases for case in own]))
    return [_of_verdicts([next(verdicts) for _ in own]) for own in cases]


def _of_verdicts(verdicts: Sequence[TurnVerdict | Failure]) -> RewardValue:
    for number, verdict in enumerate(verdicts):
        if isinstance(verdict, Failure):
            return RewardValue.unknown(f"turn {number} could not be judged: {verdict.kind}: {verdict.reason}")
    useful = [isinstance(verdict, TurnVerdict) and verdict.verdict == "useful" for verdict in verdicts]
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
        return RewardValue.unknown(f"no document is known that proves task {attempt.task.key}")
    missing = set(required)
    turns = []
    for turn in attempt.trajectory.turns:
        found = {title for title in missing if any(_has_title(call.observation, title) for call in turn.tool_calls)}
        missing -= found
        turns.append(len(found) / len(required))
    return RewardValue.of_turns(turns)


def _has_title(observation: str, title: str) -> bool:
    """Whether a document of that title is among the passages of an observation: each begins with its title, on a line of its own."""
    lines = (line for line in observation.splitlines() if line.startswith(title))
    return any(not line[len(title) : len(title) + 1].isalnum() for line in lines)


def _share_ok(turn: Turn) -> float:
    return sum(call.outcome == OK for call in turn.tool_calls) / len(turn.tool_calls) if turn.tool_calls else 0.0
