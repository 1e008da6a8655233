"""The controls that RL is measured against: what each learns from, what is told of them, and all of them on a small home."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.controls import (
    RL,
    SHUFFLED_REWARD,
    rewarded_by,
    shuffled_outcome,
)
from flows.config import load_config
from flows.context import RunContext
from flows.home import Home
from rl.rewards.config import RewardConfig
from rl.rewards.reward import GradedAttempt, RewardContext, find_functions, weights_of
from warehouse import Lake, Outcome, Score, StopReason, Task, Trajectory

SMALL, LEARNING = (str(Path(__file__).parents[1] / "end_to_end" / f"{name}.toml") for name in ("small", "newcomer"))
NOW = datetime(2030, 1, 1, tzinfo=UTC)
CONTEXT = RewardContext(RewardConfig())


@pytest.fixture
def context(tmp_path: Path) -> Iterator[RunContext]:
    settings = ["corpus.train.entities=120", "corpus.held_out.entities=120", "synth.demonstration_questions.counts={1=10, 2=20}"]
    with Lake(tmp_path) as lake:
        yield RunContext(Home(tmp_path), load_config(SMALL, settings), lake)


def attempt(task: str, sample: int, value: float | None) -> GradedAttempt:
    name = f"{task}-{sample}"
    made = Trajectory(name, task, RL, "rl", 3, (1,), (), StopReason.ANSWERED, None, None, sample, NOW, 0.1)
    verdict = Outcome.INVALID if value is None else Outcome.SUCCESS if value else Outcome.FAILURE
    return GradedAttempt(Task(task, "search", "?", ("x",)), made, Score(name, "qa_em", "1", value, verdict))


# Shuffled rewards


def test_shuffled_rewards_keep_what_a_group_earned_and_forget_who_earned_it() -> None:
    attempts = [attempt(f"k{task}", sample, float(sample < task % 9)) for sample in range(8) for task in range(200)]
    dealt = shuffled_outcome(attempts, CONTEXT)
    for key in {each.task.key for each in attempts}:
        mine = [place for place, each in enumerate(attempts) if each.task.key == key]
        assert Counter(dealt[place].value for place in mine) == Counter(attempts[place].score.value for place in mine)
    pairs = [(one.score.value or 0, two.value or 0) for one, two in zip(attempts, dealt, strict=True) if one.task.key in {"k4", "k13"}]
    assert any(before != after for before, after in pairs)
    mixed = [(one, two) for one, two in zip(attempts, dealt, strict=True) if int(one.task.key[1:]) % 9 == 4]
    earned = sum(two.value or 0 for one, two in mixed if one.score.value) / sum(one.score.value or 0 for one, _ in mixed)
    assert 0.35 < earned < 0.65, "of the rewards of groups half of which succeeded, half fall on those who earned one"
    assert shuffled_outcome(attempts, CONTEXT) == dealt


def test_an_unjudged_attempt_is_not_zero() -> None:
    values = [value.value for value in shuffled_outcome([attempt("k", 0, None), attempt("k", 1, 1.0)], CONTEXT)]
    assert sorted(values, key=str) == [1.0, None]


def test_rl_is_rewarded_by_the_shuffled_verdict_alone_and_only_while_the_control_is_made(context: RunContext) -> None:
    before = context.config
    assert len(weights_of(before.rl.rewards)) == 3
    with rewarded_by(context, SHUFFLED_REWARD):
        rewards = context.config.for_turn(1).rl.rewards
        assert weights_of(rewards) == {SHUFFLED_REWARD: 1.0}
        (function,) = find_functions(rewards).values()
        assert function.__qualname__ == shuffled_outcome.__qualname__
    assert context.config is before
    with rewarded_by(context, None):
        assert context.config is before


# What is made, and of what


# What is told
