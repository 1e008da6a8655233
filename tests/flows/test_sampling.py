"""Trajectories and attempts without tools that a user asks for, with a real engine: stored once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flows.config import FlywheelConfig, load_config
from flows.context import RunContext, StageRun
from flows.home import Home
from flows.pipeline import run_attempt
from flows.stages.rollouts import SamplingPlan, sample, wanted_of_policy
from flows.stages.synthesis.stage import synthesise
from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy
from tests.chat_models import create_chat_model
from warehouse import Document, Lake, Policy, Run, Task, Trajectory

pytestmark = pytest.mark.engine

POLICY = Policy("t1-rl", None, "rl", "policies/t1-rl", "w", None)
SIZES = PolicyConfig(
    layers=2, width=64, heads=2, key_value_heads=2, intermediate_size=128, vocabulary_size=400, max_position_embeddings=256
)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunContext]:
    root = tmp_path_factory.mktemp("home")
    limits = {"max_action_tokens": 8, "max_observation_tokens": 32, "max_context_tokens": 200}
    config = FlywheelConfig.model_validate({"rollout": {"limits": limits, "engine": {"kv_cache_gib": 0.1}}})
    create_policy(SIZES, ["Where is Amber Stone?"], ["Amber", "Stone"], root / POLICY.path, seed=0)
    context = RunContext(Home(root), config, Lake(root))
    tasks = [Task(f"k{hops}", "search", f"Where is Amber Stone, {hops}?", ("Here",), hops=hops) for hops in (1, 2, 3)]
    context.lake.add([*tasks, POLICY, Document("d", "Amber Stone", "Amber Stone is here.", "test")])
    yield context
    context.close()


def run_of(context: RunContext, name: str) -> StageRun:
    return StageRun(context.lake, Run(name, "rollout", 1, {}, "", 0, None, "running", datetime.now(UTC)))


def sampled(context: RunContext, wanted: SamplingPlan, run: StageRun) -> dict[str, Any]:
    return sample(context, POLICY, wanted_of_policy(context, POLICY, wanted, run.id), run)


@pytest.mark.long
def test_each_task_is_sampled_as_often_as_asked_and_only_what_is_missing(context: RunContext) -> None:
    run = run_of(context, "r")
    figures = sampled(context, SamplingPlan("hops <= 2", 3, 1.0, 2), run)
    run.flush()
    assert figures["trajectories"] == figures["success"] + figures["failure"] + figures["invalid"] == 6
    assert figures["tokens_per_second"] > 0
    assert "tokens_per_second" not in sampled(context, SamplingPlan("hops <= 2", 3, 1.0, 2), run), "nothing was left to do"
    more = sampled(context, SamplingPlan("hops <= 2", 4, 1.0, 2), run)
    assert more["trajectories"] == 8
    trajectories: list[Trajectory] = context.lake.trajectories()
    assert {trajectory.stage for trajectory in trajectories} == {"rollout"}
    assert len({turn.action_ids for trajectory in trajectories for turn in trajectory.turns[:1]}) > 1
    named = context.lake.query("SELECT DISTINCT name FROM metrics WHERE run_id = 'r'").to_pylist()
    assert {"engine_requests", "engine_tokens_per_second", "tokens_per_second"} <= {row["name"] for row in named}
    assert context.lake.query("SELECT count(*) AS n FROM evaluations").to_pylist() == [{"n": 0}]


CHAT = Path(__file__).parent.parent / "end_to_end" / "chat.toml"


@pytest.mark.long
def test_the_model_that_is_to_be_trained_attempts_what_it_would_be_trained_on(tmp_path: Path) -> None:
    settings = [
        f"policy.path={create_chat_model(tmp_path / 'model')}",
        "synth.direct_attempts.by=policy",
        "synth.direct_attempts.attempts=2",
        "synth.direct_attempts.max_tokens=8",
        "synth.webshaper.counts={1=6}",
        "rollout.engine.dtype=float32",
        "rollout.engine.kv_cache_gib=0.2",
        "rollout.environments.workers=1",
        "rollout.ray.object_store_gib=0.1",
    ]
    found = []
    for name in ("one", "other"):
        with Lake(tmp_path / name) as lake:
            context = RunContext(Home(tmp_path / name), load_config(str(CHAT), settings), lake)
            work = partial(synthesise, context, turn=1, kind="webshaper")
            try:
                run_attempt(lake, "t1-synth-webshaper", "synth", 1, {}, work)
            finally:
                context.stop_engines()
            tasks, faults = lake.tasks(split="train"), lake.failures("synth")
            assert lake.trajectories() == [], "an attempt without tools is no rollout, and no pass rate knows of it"
            found.append([(task.key, task.provenance) for task in tasks])
    assert len(tasks) == 6 and not [failure for failure in faults if failure.kind == "direct_engine_fault"]
    assert {tuple(task.provenance["direct_attempts"].items()) for task in tasks} == {(("by", "model"), ("attempts", 2), ("answered", 0))}
    assert found[0] == found[1]
