"""Parts of rewards by hand, how they are composed, and that what is unknown is no zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from eval.graders.choice import Verifiers, verifiers_of
from rl.advantages import process
from rl.learner.batches import rows_of
from rl.learner.config import FilterConfig
from rl.learner.metrics import describe
from rl.rewards.config import RewardConfig
from rl.rewards.reward import GradedAttempt, RewardContext, RewardValue, find_functions, reward_trajectories
from rl.rollouts.collect import filtered
from tests.rl.toy import trajectory, turn
from warehouse import Lake
from warehouse.records import Call, Outcome, RewardPart, Score, Task, Trajectory, Turn

TASK = Task("t", "search", "Where?", ("Green Lake",))
CONTEXT = RewardContext(RewardConfig(), {"t": frozenset({"Amber Stone", "Blue River"})})


def search(index: int, observation: str, outcome: str = "ok", reward: float | None = None) -> Turn:
    call = Call("search", "query", outcome, observation, reward=reward)
    return replace(turn(index, [5, 6], [-0.5, -0.5], (9,)), calls=(call,))


def answer(index: int, text: str) -> Turn:
    last = turn(index, [7, 8], [-0.1, -0.3], tool="answer")
    return replace(last, arguments=text, calls=(Call("answer", text, None),))


def void(index: int) -> Turn:
    return replace(turn(index, [5], [-1.0]), tool=None, calls=(), tool_outcome="unparsable")


def attempt(reward: float | None, *turns: Turn, sample: int = 0) -> GradedAttempt:
    """An attempt that a verifier gave this value; None is one that it called invalid."""
    judged = trajectory("t", sample, turns, reward)
    score = Score(judged.id, "test", "1", reward, judged.outcome or Outcome.INVALID)
    return GradedAttempt(TASK, replace(judged, outcome=None, reward=None), score)


@dataclass(frozen=True)
class Given:
    """A verifier whose scores are given."""

    scores: dict[str, Score]
    name: str = "test"
    version: str = "1"

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        return self.scores[trajectory.id]


def compose(attempts: Sequence[GradedAttempt], context: RewardContext) -> tuple[list[Trajectory], list[RewardPart]]:
    """The rewards of attempts whose grades are given."""
    given = Given({each.score.trajectory_id: each.score for each in attempts})
    tasks, sampled = [each.task for each in attempts], [each.trajectory for each in attempts]
    rewarded = reward_trajectories(tasks, sampled, Verifiers(given), context)
    return rewarded.trajectories, rewarded.parts


def values(name: str, *attempts: GradedAttempt, context: RewardContext = CONTEXT) -> list[RewardValue]:
    (part,) = find_functions(RewardConfig(parts={"outcome": 0, name: 1})).values()
    return part(attempts, context)


RIGHT = (search(0, "Amber Stone\nIt is here."), answer(1, "Green Lake"))


def test_outcome_is_the_verifiers_value_or_its_sign() -> None:
    attempts = [attempt(1.0, *RIGHT), attempt(0.25, *RIGHT)]
    assert [value.value for value in values("outcome", *attempts)] == [1.0, 0.25]
    assert [value.value for value in values("signed_outcome", *attempts)] == [1.0, -1.0]


def test_the_ladder_of_format_has_search_r1s_rungs() -> None:
    spoilt, silent = (void(0), answer(1, "Green Lake")), (search(0, ""),)
    attempts = [attempt(1.0, *RIGHT), attempt(1.0, *spoilt), attempt(0.0, *RIGHT), attempt(0.0, *spoilt), attempt(0.0, *silent)]
    assert [value.value for value in values("format_ladder", *attempts)] == [1.0, 0.8, 0.2, 0.1, 0.0]
    assert [value.value for value in values("format", *attempts)] == [1, 0, 1, 0, 0]


def test_a_required_document_counts_in_the_turn_that_finds_it_first() -> None:
    shown = ("Amber Stone\nIts seat is Blue River.", "Amber Stonewall\nAnother.", "Amber Stone\nAgain.\nBlue River is a river.")
    turns = [search(place, text) for place, text in enumerate(shown)]
    assert values("evidence", attempt(1.0, *turns, answer(3, "Green Lake"))) == [RewardValue(1.0, (0.5, 0.0, 0.5, 0.0))]


def test_penalties_fall_on_void_turns_and_on_tokens() -> None:
    long = attempt(1.0, void(0), *[search(number, "") for number in (1, 2, 3)])
    assert values("void_turns", long)[0] == RewardValue(-0.25, (-0.25, 0.0, 0.0, 0.0))
    context = RewardContext(RewardConfig(length_tokens=14))
    assert values("length", long, context=context)[0].value == -0.5
    assert values("length", long, context=RewardContext(RewardConfig(length_tokens=3)))[0].value == -1.0


def test_agreement_is_the_share_of_the_group_with_the_same_answer() -> None:
    attempts = [attempt(0.0, answer(0, text), sample=n) for n, text in enumerate(["The Lake", "lake", "Pond"])]
    silent = attempt(0.0, search(0, ""), sample=3)
    assert [value.value for value in values("agreement", *attempts, silent)] == [0.5, 0.5, 0.25, 0.0]
    assert values("agreement", attempts[0])[0].value is None


@pytest.mark.slow
def test_parts_are_summed_by_weight_and_each_is_a_record(tmp_path: Path) -> None:
    config = RewardConfig(parts={"evidence": 0.4, "tool_success": 0.2})
    (rewarded,), parts = compose([attempt(1.0, *RIGHT)], replace(CONTEXT, config=config))
    assert rewarded.reward == pytest.approx(1.0 + 0.4 * 0.5 + 0.2 * 0.5)
    assert [each.reward for each in rewarded.turns] == pytest.approx([0.4 * 0.5 + 0.2 * 0.5, 0.0])
    assert rewarded.outcome is Outcome.SUCCESS
    found = {(part.name, part.weight, part.value) for part in parts}
    assert found == {("outcome", 1.0, 1.0), ("evidence", 0.4, 0.5), ("tool_success", 0.2, 0.5)}
    with Lake(tmp_path) as lake:
        lake.add([rewarded, *parts])
        lake.add(parts)
        stored = lake.query("SELECT name, weight * value AS points, turns FROM reward_parts ORDER BY name").to_pylist()
    assert [row["name"] for row in stored] == ["evidence", "outcome", "tool_success"]
    assert sum(row["points"] for row in stored) == pytest.approx(rewarded.reward)
    assert stored[0]["turns"] == [0.5, 0.0]


def test_what_turns_earned_reaches_the_estimator_and_sums_up_to_the_reward() -> None:
    config = RewardConfig(parts={"evidence": 1.0})
    found = attempt(1.0, *RIGHT)
    missed = attempt(0.0, search(0, "Nothing"), answer(1, "Pond"), sample=1)
    rewarded, _ = compose([found, missed], replace(CONTEXT, config=config))
    rows = rows_of(rewarded, process)
    assert [row.turn_rewards for row in rows] == [pytest.approx((0.5, 1.0)), pytest.approx((0.0, 0.0))]
    first, last = rows[0].advantages[0], rows[0].advantages[-1]
    assert first > last > 0 > rows[1].advantages[0]


ENDLESS = (search(0, "", reward=math.inf), search(1, "", reward=-1.0), answer(2, "Green Lake"))


@pytest.mark.parametrize(("name", "turns", "reason"), [("agreement", RIGHT, "single attempt"), ("environment", ENDLESS, "inf")])
def test_an_unknown_part_gives_no_reward_rather_than_zero(name: str, turns: tuple[Turn, ...], reason: str) -> None:
    (rewarded,), parts = compose([attempt(1.0, *turns)], RewardContext(RewardConfig(parts={name: 1.0})))
    assert (rewarded.outcome, rewarded.reward, {each.reward for each in rewarded.turns}) == (Outcome.SUCCESS, None, {None})
    assert rows_of([rewarded], process) == []
    (error,) = (part.error for part in parts if part.name == name)
    assert error is not None and reason in error


def test_an_invalid_trajectory_has_no_parts_and_does_not_affect_its_group() -> None:
    faulty = attempt(None, answer(0, "lake"), sample=9)
    attempts = [attempt(1.0, answer(0, "lake")), faulty, attempt(1.0, answer(0, "pond"), sample=1)]
    rewarded, parts = compose(attempts, RewardContext(RewardConfig(parts={"outcome": 0, "agreement": 1.0})))
    assert [each.reward for each in rewarded] == [0.5, None, 0.5]
    assert {part.trajectory_id for part in parts} == {"t-0", "t-1"}


def test_answers_agree_that_the_verifier_of_the_step_reads_as_the_same() -> None:
    task = replace(TASK, answers=("18",))
    sampled = [attempt(1.0, answer(0, text), sample=place).trajectory for place, text in enumerate(("18 dollars", "It is $18.", "17"))]
    context = RewardContext(RewardConfig(parts={"outcome": 0, "agreement": 1.0}))
    rewarded = reward_trajectories([task] * 3, sampled, verifiers_of("gsm8k"), context).trajectories
    assert [each.reward for each in rewarded] == pytest.approx([2 / 3, 2 / 3, 1 / 3])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_verdict_is_invalid(value: float) -> None:
    attempts = [attempt(value, *RIGHT), attempt(1.0, *RIGHT, sample=1), attempt(0.0, *RIGHT, sample=2)]
    given = Given({each.score.trajectory_id: each.score for each in attempts})
    made = reward_trajectories([TASK] * 3, [each.trajectory for each in attempts], Verifiers(given), CONTEXT)
    assert [(each.outcome, each.reward) for each in made.trajectories[:2]] == [(Outcome.INVALID, None), (Outcome.SUCCESS, 1.0)]
    assert (made.scores[0].value, made.scores[0].verdict) == (None, Outcome.INVALID)
    assert str(value) in (made.scores[0].error or "")
    assert filtered(made.trajectories, FilterConfig(variance=True)) == []
    assert describe(made.trajectories)["reward"] == 0.5


def judge(attempts: Sequence[GradedAttempt], context: RewardContext) -> list[RewardValue]:
    """A part of one's own."""
    return [RewardValue(float(len(each.task.question))) for each in attempts]


def test_a_part_of_ones_own_is_named_by_module_and_attribute() -> None:
    config = RewardConfig(parts={"tests.rl.rewards.test_rewards:judge": 2.0})
    (rewarded,), _ = compose([attempt(1.0, *RIGHT)], RewardContext(config))
    assert rewarded.reward == 1.0 + 2.0 * len(TASK.question)
