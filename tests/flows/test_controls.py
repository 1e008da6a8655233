"""The controls that RL is measured against: what each learns from, what is told of them, and all of them on a small home."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.controls import (
    RL,
    SFT,
    SHUFFLED_REWARD,
    clean_demonstrations,
    controls,
    rewarded_by,
    shuffled_outcome,
)
from flows.config import load_config
from flows.context import RunContext, StageRun
from flows.home import Home
from flows.pipeline import run_attempt
from flows.stages.synthesis.batches import begin, work_off
from flows.stages.synthesis.examples import demonstrations
from rl.rewards.config import RewardConfig
from rl.rewards.reward import GradedAttempt, RewardContext, find_functions, weights_of
from tests.end_to_end.towns import write_corpus
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


def test_what_no_verifier_could_judge_is_no_zero() -> None:
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


def test_clean_demonstrations_are_of_the_questions_that_the_cold_start_showed(context: RunContext) -> None:
    """Also where those were made in several batches, each of which leaves out what the lake has by then."""
    synth = context.config.synth.model_copy(update={"batch": 12})
    context.config = context.config.model_copy(update={"synth": synth})

    def work(at_work: StageRun) -> dict[str, Any]:
        work_off(at_work, demonstrations(*begin(context, 1)))
        return {}

    run_attempt(context.lake, "t1-synth", "synth", 1, {}, work)
    own = context.lake.examples(["trajectory"])
    clean = clean_demonstrations(context)
    assert sorted(each.sources for each in clean) == sorted(each.sources for each in own) and len(clean) == 30
    assert {each.id.split("-")[1] for each in own} > {"clean"} and {each.id.split("-")[1] for each in clean} == {"clean"}
    assert context.lake.examples() == own, "they are none of the wheel's"


# What is told


@pytest.mark.long
@pytest.mark.end_to_end
@pytest.mark.timeout(1200)
def test_all_controls_of_a_small_home(tmp_path: Path) -> None:
    """One whose policy has successes: it learns its few questions by heart."""
    home = tmp_path / "home"
    write_corpus(tmp_path / "corpus")
    settings = (
        "corpus.kind=files", f"corpus.path={tmp_path / 'corpus'}", "synth.demonstrations.wrong_turn=0.3", "rl.rewards.parts={format=0.1}",
    )  # fmt: skip
    turned = [sys.executable, "-m", "flows.cli", "run", "--profile", LEARNING, "--home", str(home), "--turns", "1"]
    turned += [part for setting in settings for part in ("--set", setting)]
    subprocess.run(turned, check=True, capture_output=True, timeout=600)
    command = [sys.executable, "-m", "benchmarks.controls", "--home", str(home), "--json"]
    refused = subprocess.run([*command, "--only", "none"], capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2 and "there is no control 'none'" in refused.stderr
    with Lake(home) as lake:
        lake.add([replace(task, key=f"later-{task.key}") for task in lake.tasks(split="train")])
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout)
    policies = {control.policy for control in controls()}
    assert policies <= {row["policy"] for row in found["comparison"]} and policies <= found["runs"].keys()
    with Lake(home, read_only=True) as lake:
        parents = {policy.id: policy.parent for policy in lake.policies()}
        rewarded = (
            lake.query("SELECT DISTINCT name FROM reward_parts WHERE trajectory_id LIKE 't1-rl-shuffled-%'").column("name").to_pylist()
        )
        later = lake.query("SELECT id FROM trajectories WHERE starts_with(task_key, 'later-')").to_pylist()
        before = lake.snapshot()
    assert (parents["t1-rl-without_sft"], parents["t1-sft-clean"], parents["t1-rl-shuffled"]) == ("t1-cpt", "t1-cpt", SFT)
    rft = found["runs"]["t1-sft-rft"]
    assert rft["sampled_tokens"] >= rft["wanted_tokens"] > 0 and rft["successes"] > 0
    assert rewarded == [SHUFFLED_REWARD] and later == [], "every control draws from what RL found"
    again = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    assert json.loads(again.stdout) == found
    with Lake(home, read_only=True) as lake:
        assert lake.snapshot() == before
