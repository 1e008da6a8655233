"""RL with a toy policy that samples in place of engines: evaluation during training, and a judge as verifier."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from flows.config import load_config
from flows.context import open_context
from flows.pipeline import run_attempt
from flows.stages.async_evaluation import STAGE, metrics_of
from flows.stages.reinforcement import reinforce
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.rollout import Rollouts
from tests.flows.reinforcement_process import ToyRollouts
from tests.flows.test_judges import answers, server_settings
from tests.flows.test_resumption import Stage, rows, weights_of, weights_of_start
from tests.flows.test_resumption import stage as stage
from tests.flows.toy_home import SMALL, home_of
from tests.rl.conftest import DOCUMENTS
from tests.rl.toy import trajectory, turn
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Completion, Lake, Metric, Outcome, RewardPart, Task

TRIED = 6
"""Tasks of the suite in the toy's home."""


def toy_home(root: Path, *settings: str, tasks: int = TRIED) -> Path:
    """A home of the toy whose gate has a suite."""
    home_of(root, *settings)
    with Lake(root) as lake:
        names = [f"v{number:02d}" for number in range(tasks)]
        lake.add([Task(name, "search", f"Which is {name}?", ("yes",), split="validation") for name in names])
    return root


def train(root: Path, rollouts: Rollouts | None = None) -> dict[str, Any]:
    """The RL stage of a toy's home; its figures."""
    with open_context(root) as context:
        context._rollouts = cast(Rollouts, ToyRollouts(-1)) if rollouts is None else rollouts
        try:
            _, figures = run_attempt(context.lake, "t1-rl", "rl", 1, {}, lambda run: reinforce(context, run, 1, "t1-sft"))
        finally:
            if rollouts is not None:
                context._rollouts = None  # others use it too
    return figures


SAMPLED = """
SELECT t.id, t.seed, t.reward, list([u.action_ids, u.observation_ids] ORDER BY u.index) AS tokens, list(u.policy_version ORDER BY u.index)
    AS versions FROM trajectories t JOIN turns u ON u.trajectory_id = t.id WHERE t.stage = 'rl' GROUP BY ALL ORDER BY t.id
"""
LEARNT = """
SELECT step, name, value FROM metrics
WHERE stage = 'rl' AND name IN ('loss', 'grad_norm', 'reward', 'success', 'horizon', 'entropy', 'staleness')
ORDER BY ALL
"""
FIGURES = "SELECT version, suite, tasks, valid, invalid, first_version, last_version FROM evaluations_beside ORDER BY version"


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.parametrize("mode", ["one_step_off", "synchronous"])
def test_evaluation_during_training_does_not_change_training(tmp_path: Path, mode: str) -> None:
    settings = (f"rl.mode={mode}",)
    without, beside = toy_home(tmp_path / "without", *settings), toy_home(tmp_path / "with", *settings, "rl.evaluate.every=2")
    train(without)
    train(beside)
    for sql in (SAMPLED, LEARNT):
        assert rows(beside, sql) == rows(without, sql) != []
    assert weights_of(beside) == weights_of(without)
    figures = rows(beside, FIGURES)
    assert [row["version"] for row in figures if row["suite"] == "validation"][-1] == 8, "the last one is waited for"
    assert {row["tasks"] for row in figures} == {TRIED} and all(row["valid"] + row["invalid"] == TRIED for row in figures)
    assert all(row["version"] <= row["first_version"] <= row["last_version"] for row in figures)
    assert (figures[-1]["first_version"], figures[-1]["last_version"]) == (8, 8), "nothing is learnt after it"
    (counted,) = rows(beside, f"SELECT count(*) AS n, count(DISTINCT id) AS ids FROM trajectories WHERE stage = '{STAGE}'")
    assert counted["n"] == counted["ids"] == TRIED * len(figures)
    assert rows(without, "FROM evaluations_beside") == []


class Hindered(ToyRollouts):
    """A toy whose evaluation after step 2 meets a fault."""

    async def one(self, request: RolloutRequest) -> Any:
        if request.stage == STAGE and request.step == 2:
            raise ValueError("no such world")
        return await super().one(request)


@pytest.fixture(scope="module")
def hindered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = toy_home(tmp_path_factory.mktemp("hindered"), "rl.steps=4", "rl.evaluate.every=2")
    assert train(home, cast(Rollouts, Hindered(-1)))["steps"] == 4, "training continues"
    return home


@pytest.mark.engine
def test_a_fault_in_an_evaluation_is_a_record(hindered: Path) -> None:
    (failure,) = rows(hindered, f"SELECT kind, reason, item->>'version' AS version FROM failures WHERE stage = '{STAGE}'")
    assert (failure["kind"], failure["version"]) == ("fault", "2") and "no such world" in failure["reason"]
    assert [row["version"] for row in rows(hindered, FIGURES)] == [4]


@pytest.mark.engine
def test_evaluation_during_training_counts_in_no_view_of_evaluations_or_pass_rates(hindered: Path) -> None:
    tried = rows(hindered, "SELECT DISTINCT suite FROM trajectories WHERE suite IS NOT NULL AND step = 4")
    assert tried == [{"suite": "validation"}]
    for view in ("evaluations", "suite_tasks", "suite_coverage"):
        assert rows(hindered, f"FROM {view}") == []
    assert rows(hindered, "FROM pass_rate WHERE starts_with(task_key, 'v')") == [] != rows(hindered, "FROM pass_rate")


@pytest.mark.long
@pytest.mark.engine
def test_a_killed_run_resumes_its_evaluation_and_repeats_no_attempt(stage: Stage, tmp_path: Path) -> None:
    settings = ("rl.evaluate.every=2", "rl.evaluate.at_once=1")
    whole, killed = (toy_home(tmp_path / name, *settings, tasks=16) for name in ("whole", "killed"))
    assert stage.run(whole) == 0
    assert stage.run(killed, kill=3 * 12 + 12) == -signal.SIGKILL
    checkpoint = killed / "policies" / "t1-rl" / "checkpoints" / "checkpoint-3"
    (state,) = (json.loads(file.read_text())["beside"] for file in checkpoint.glob("*.json") if '"beside"' in file.read_text())
    assert state == {"under_way": 2} and rows(killed, FIGURES) == []
    before = rows(killed, f"SELECT id, started FROM trajectories WHERE stage = '{STAGE}' ORDER BY id")
    assert stage.run(killed) == 0
    figures = rows(killed, FIGURES)
    assert (figures[0]["version"], figures[-1]["version"]) == (2, 8) and {row["tasks"] for row in figures} == {16}
    assert figures[0]["last_version"] > 2, "it went on under newer weights"
    (counted,) = rows(killed, f"SELECT count(*) AS n, count(DISTINCT id) AS ids FROM trajectories WHERE stage = '{STAGE}'")
    assert counted["n"] == counted["ids"] == 16 * len(figures)
    assert len(before) < 16
    assert weights_of(killed) == weights_of(whole)
    assert rows(killed, SAMPLED) == rows(whole, SAMPLED)


@pytest.mark.long
@pytest.mark.engine
def test_with_vllm_evaluation_does_not_change_training(tmp_path: Path) -> None:
    limits = ("rollout.limits.max_action_tokens=8", "rollout.limits.max_context_tokens=200")
    settings = (*limits, "rl.steps=3", "rollout.engine.kv_cache_gib=0.1", "rl.rewards.parts={length=1}", "rl.rewards.length_tokens=16")
    without, beside = toy_home(tmp_path / "without", *settings), toy_home(tmp_path / "with", *settings, "rl.evaluate.every=1")
    with Rollouts.start(load_config(str(SMALL), settings).rollout, without / "policies" / "t1-sft", DOCUMENTS) as rollouts:
        train(without, rollouts)
        train(beside, rollouts)
    sampled, expected = rows(beside, SAMPLED), rows(without, SAMPLED)
    assert sampled == expected and len(sampled) == 3 * 12
    assert {version for row in sampled for version in row["versions"]} == {0, 1, 2}
    assert weights_of(without) != weights_of_start(without), "it learns something"
    figures = rows(beside, FIGURES)
    assert figures[-1]["version"] == 3 and all(row["valid"] == TRIED for row in figures)
    assert all(row["version"] <= row["first_version"] <= row["last_version"] for row in figures)
    assert rows(beside, f"SELECT DISTINCT action_tokens > 0 AS sampled FROM trajectories WHERE stage = '{STAGE}'") == [{"sampled": True}]


def test_the_figures_say_whose_tokens_an_evaluation_is_made_of() -> None:
    own = replace(turn(0, [1, 2, 3], [-0.1] * 3, ()), policy_version=4)
    mixed = replace(turn(1, [1, 2], [-0.1] * 2, ()), policy_version=4, policy_versions=(4, 6))
    won, lost = trajectory("a", 0, [own, mixed], 1.0), trajectory("b", 0, [own], 0.0)
    broken = replace(trajectory("c", 0, [], None), outcome=Outcome.INVALID)
    found = metrics_of([won, lost, broken], 4)
    counts = {"tasks": 3, "valid": 2, "invalid": 1, "successes": 1, "success": 0.5}
    assert found == {**counts, "first_version": 4, "last_version": 6, "own_tokens": 7 / 8}
    assert metrics_of([broken], 4) == {"tasks": 1, "valid": 0, "invalid": 1, "successes": 0}


def beside_metrics(run: str, version: int, suite: str, **figures: float) -> list[Metric]:
    return [Metric(run, "rl", 2, version, f"beside/{suite}/{name}", value) for name, value in figures.items()]


WHOLE = {"tasks": 10, "valid": 8, "invalid": 2, "successes": 6, "success": 0.75, "first_version": 10, "last_version": 12, "own_tokens": 0.5}
NONE_VALID = {"tasks": 3, "valid": 0, "invalid": 3, "successes": 0}


def test_each_evaluation_is_a_row_of_a_view(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.add([*beside_metrics("t2-rl", 10, "a/b", **WHOLE, seconds=7), *beside_metrics("t2-rl", 20, "c", **NONE_VALID, seconds=1)])
        lake.add([Metric("t2-rl", "rl", 2, 10, "success", 0.5)])
        first, second = lake.query("FROM evaluations_beside ORDER BY version").to_pylist()
    low, high = first.pop("low"), first.pop("high")
    assert (low, high) == pytest.approx((0.40927, 0.92852), abs=1e-5), "Wilson's interval of 6 in 8"
    told = {name: value for name, value in WHOLE.items() if name != "successes"}
    assert first == {"turn": 2, "run": "t2-rl", "suite": "a/b", "version": 10, "seconds": 7, **told}
    assert (second["suite"], second["success"], second["low"], second["first_version"]) == ("c", None, None, None)


SETTINGS = ("rl.steps=1", "rl.rewards.verifier=judge", "rl.rewards.parts={turn_judge=0.5}")


@pytest.mark.engine
def test_a_judge_grades_and_rewards_every_turn(tmp_path: Path) -> None:
    with MisbehavingServer(["500"], answer=answers) as server:
        train(home_of(tmp_path, *SETTINGS, *server_settings(server)))
    with Lake(tmp_path, read_only=True) as lake:
        runs = {one.id: one for one in lake.trajectories("stage = 'rl'")}
        scores, parts, asked = lake.scores(), lake.read(RewardPart, "name = 'turn_judge'"), lake.read(Completion)
    assert len(runs) == 3 * 4 and {score.verifier for score in scores} == {"judge:openai:small"}
    assert {runs[score.trajectory_id].answer for score in scores if score.verdict is Outcome.SUCCESS} == {"yes"}
    assert {part.trajectory_id for part in parts} == set(runs) and all(len(part.turns) == 2 for part in parts)
    for part in parts:
        (score,) = [one for one in scores if one.trajectory_id == part.trajectory_id]
        assert runs[part.trajectory_id].reward == pytest.approx((score.value or 0.0) + 0.5 * (part.value or 0.0))
    assert len(asked) == len({str(body["messages"]) for body in server.bodies}), "the same is not asked twice"
