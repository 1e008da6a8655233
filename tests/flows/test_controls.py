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
    chosen,
    clean_demonstrations,
    comparison,
    controls,
    markdown,
    rewarded_by,
    sample_as_rl,
    sampled_tokens,
    shuffled_outcome,
)
from flows.config import load_config
from flows.context import RunContext, StageRun
from flows.home import Home
from flows.pipeline import run_attempt
from flows.stages.synthesis.batches import begin, work_off
from flows.stages.synthesis.examples import demonstrations
from flows.variants import horizons
from rl.rewards.config import RewardConfig
from rl.rewards.reward import GradedAttempt, RewardContext, find_functions, weights_of
from tests.end_to_end.towns import write_corpus
from warehouse import Lake, Outcome, Policy, RequestError, Run, Score, StopReason, Task, Trajectory, Turn

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


def test_the_order_of_the_attempts_deals_the_same() -> None:
    attempts = [attempt("k", sample, float(sample < 4)) for sample in range(8)]
    again = [attempt("k", sample, float(sample >= 4)) for sample in range(8)]
    assert [value.value for value in shuffled_outcome(attempts, CONTEXT)] == [1 - (v.value or 0) for v in shuffled_outcome(again, CONTEXT)]


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


def test_what_is_sampled_is_as_much_as_rl_sampled_of_its_tasks_and_not_sampled_again(context: RunContext) -> None:
    """Everything that the control could draw from RL's own tasks is stored: an engine, which this home has no policy for, is not asked."""
    tasks = [Task(f"k{number}", "search", "?", ("x",), split="train", hops=1) for number in range(6)]
    context.lake.add([*tasks, Policy(SFT, None, "sft", "policies/none", "d", 1, 1)])
    began = context.lake.snapshot()
    of_rl = [replace(ended(RL, task.key, sample), stage="rl") for task in tasks for sample in range(5)]
    context.lake.add([Run(RL, "rl", 1, {}, "c", began, None, "completed", NOW), *of_rl])
    context.lake.add([Task(f"later{number}", "search", "?", ("x",), split="train", hops=1) for number in range(60)])
    run = Run("t1-sft-rft", "sft", 1, {}, "c", context.lake.snapshot(), None, "running", NOW)
    stored = [ended(f"{run.id}-{step:05d}", task.key, sample) for step in range(1, 9) for task in tasks for sample in range(4)]
    context.lake.add(stored)
    wanted = sampled_tokens(context)[RL]
    sampled = sample_as_rl(context, StageRun(context.lake, run), wanted)
    assert wanted == 30 * 3 and len(sampled) == 2 * 16, "a step is 16 trajectories of 3 tokens"
    assert {each.id.split("-")[3] for each in sampled} == {"00001", "00002"} and len({each.task_key for each in sampled}) > 4
    assert {each.id for each in sampled} <= {each.id for each in stored}


def ended(prefix: str, task: str, sample: int) -> Trajectory:
    """A trajectory of a task, three action tokens long."""
    turn = Turn(0, (1, 2, 3), (-0.1,) * 3, "<answer> x</answer>", "answer", "x", (), "", None, None, 0.1, 1)
    base = attempt(task, sample, float(sample % 2)).trajectory
    return replace(base, id=f"{prefix}-{task}-{sample}", stage="rollout", turns=(turn,), outcome=Outcome.SUCCESS, reward=1.0)


def test_the_controls_that_are_asked_for(context: RunContext) -> None:
    with pytest.raises(RequestError, match="no policy t1-rl: make it"):
        chosen(context, "", 4)
    context.lake.add([Policy(RL, SFT, "rl", "policies/x", "d", 1, 1)])
    names = [control.name for control in controls()]
    assert [control.name for control in chosen(context, "", 4)] == names == ["without_sft", "clean", "further", "rft", "shuffled"]
    assert [control.policy for control in chosen(context, "shuffled,rft", 4)] == ["t1-sft-rft", "t1-rl-shuffled"]
    with pytest.raises(RequestError, match="there is no control 'rl'; choose of without_sft, clean"):
        chosen(context, "rl", 4)
    demonstrations = context.config.synth.demonstrations
    synth = context.config.synth.model_copy(update={"demonstrations": demonstrations.clean})
    own = context.config
    for changed in ({"synth": synth}, {"sft": own.sft.model_copy(update={"sources": ("imported",)})}):
        context.config = own.model_copy(update=changed)
        assert "clean" not in [control.name for control in chosen(context, "", 4)], "SFT is clean itself"
        with pytest.raises(RequestError, match="has no corrupted demonstrations"):
            chosen(context, "clean, rft", 4)


@pytest.mark.parametrize("control", [control.name for control in controls()])
def test_rl_under_the_name_of_a_control_has_the_horizons_of_the_curriculum(control: str) -> None:
    assert horizons(control, (3, 4, 5)) == horizons("", (3, 4, 5)) == (3, 4, 5)
    assert (horizons("fixed_first", (3, 4, 5)), horizons("fixed_last", (3, 4, 5))) == ((3,), (5,))


# What is told


def evaluated(policy: str, solved: int) -> list[object]:
    made: list[object] = []
    for number in range(20):
        outcome = Outcome.SUCCESS if number < solved else Outcome.FAILURE
        one = attempt(f"k{number}", 0, float(number < solved)).trajectory
        one = replace(one, id=f"{policy}-{number}", policy=policy, stage="eval", suite="held_out", outcome=outcome)
        made += [one, Score(one.id, "qa_em", "1", float(number < solved), outcome)]
    return made


def test_the_table_has_every_policy_of_the_turn_and_rl_against_each(context: RunContext) -> None:
    shuffled, rft = "t1-rl-shuffled", "t1-sft-rft"
    solved = {"t1-cpt": 4, SFT: 6, RL: 18, shuffled: 6, rft: 12}
    context.lake.add([Task(f"k{number}", "search", "?", ("x",), split="held_out", hops=1 + number % 2) for number in range(20)])
    context.lake.add([Policy(policy, None, policy.split("-")[1], "policies/x", policy, 1, 1) for policy in solved])
    context.lake.add([record for policy, count in solved.items() for record in evaluated(policy, count)])  # type: ignore[misc]
    context.lake.add([Policy("t2-rl", RL, "rl", "policies/y", "y", 1, 2)])
    context.lake.add(evaluated("t2-rl", 20))  # type: ignore[arg-type]
    context.lake.add([Run(rft, "sft", 1, {}, "c", 1, 2, "completed", NOW, NOW, {"sampled_tokens": 1234, "policy": rft})])
    rows = comparison(context)
    whole = {row["policy"]: row for row in rows if row["hops"] is None}
    assert whole.keys() == set(solved), "turn 2 is no control of turn 1"
    assert [row["hops"] for row in rows if row["policy"] == RL] == [None, 1, 2]
    assert (whole[rft]["rl_gain"], whole[rft]["gain"], whole[rft]["sampled_tokens"]) == (pytest.approx(0.3), pytest.approx(0.3), 1234)
    assert "rl_gain" not in whole[RL] and "gain" not in whole[SFT]
    assert whole[shuffled]["gain"] == 0.0 and whole[shuffled]["words"] == "RL with shuffled rewards"
    lines = markdown(rows).splitlines()
    assert len(lines) == 2 + len(solved)
    (line,) = [line for line in lines if f"`{rft}`" in line]
    assert line == (
        f"| held_out | `{rft}` | rejection-sampling fine-tuning on as many sampled tokens | 60.0 (38.7–78.1) | +30.0 (p = 0.031) "
        "| +30.0 (p = 0.031) | 1,234 | 0.0 | 0.0 | 0.0 |"
    )


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
