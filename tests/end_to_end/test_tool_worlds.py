"""The profile `tool_world` at a tiny size: a teacher whose proposals are half broken, a cold start, and RL on what holds.

The cold start learns the solutions by heart, and does some of them when it samples: RL meets successes beside failures of one task.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from flows.config import load_config
from flows.context import RunContext, open_context
from flows.home import Home
from flows.pipeline import Work, run_attempt
from flows.stages.reinforcement import reinforce
from flows.stages.synthesis.stage import synthesise
from flows.stages.training import finetune, initialise
from synth.teachers.config import TeacherConfig
from synth.teachers.model_teacher import open_teacher
from synth.worlds.world_writer import write_world
from synth.worlds.writing_config import WrittenWorldsConfig
from synth.worlds.written_tasks import demonstrate
from tests.chat_models import create_chat_model
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from tests.synth.worlds import two_domains as two
from warehouse import Lake, Outcome

pytestmark = [
    pytest.mark.engine,
    pytest.mark.end_to_end,
    pytest.mark.long,
    pytest.mark.timeout(1200),
]
TINY = {
    "rollout.limits.max_context_tokens": 2048, "rollout.limits.max_action_tokens": 64, "rollout.limits.max_observation_tokens": 128,
    "rollout.engine.dtype": "float32", "rollout.engine.max_model_len": 2048, "rollout.engine.kv_cache_gib": 0.5,
    "rollout.engine.max_batched_tokens": 4096, "rollout.ray.object_store_gib": 0.1,
    "synth.tool_worlds.worlds": 1, "synth.tool_worlds.tasks": 6, "synth.tool_worlds.records": 6,
    "synth.tool_worlds.demonstrated": 1.0, "synth.tool_worlds.held_out": 0.0,
    "sft.learning_rate": 4e-3, "sft.row_tokens": 2048, "sft.max_example_tokens": 2048, "sft.epochs": 60,
    "rl.tasks": "split = 'demonstration'", "rl.steps": 2, "rl.tasks_per_step": 4, "rl.samples_per_task": 4, "rl.horizon.rounds": [6],
    "rl.filters.variance": False, "rl.learning_rate": 1e-4, "wheel.stages": ["sft", "rl"],
}  # fmt: skip


def tiny_policy(folder: Path) -> Path:
    """A tiny chat model, whose tokenizer is of the two worlds as they will be."""
    texts = []
    with MisbehavingServer(answer=two.world_writer) as server:
        config = WrittenWorldsConfig.model_validate({"descriptions": ["x"], "tasks": 6, "records": 6})
        with open_teacher(TeacherConfig(kind="openai", model="m", base_url=server.url)) as teacher:
            for description in (two.LIBRARY, two.CLINIC):
                made = write_world("x", description, teacher, config, seed=0)
                texts += ["\n".join(part.text for part in each.parts) for each in demonstrate(made.tasks, 1)]
    return create_chat_model(folder, 4096, texts * 20, vocabulary_size=900)


def work(context: RunContext, run_id: str, stage: str, does: Work) -> None:
    """One stage, in this process."""
    run_attempt(context.lake, run_id, stage, 0 if stage == "init" else 1, {}, lambda run: does(context.watch(run)))


def test_rl_trains_on_the_tasks_that_hold(tmp_path: Path) -> None:
    home, policy = tmp_path / "home", tiny_policy(tmp_path / "policy")
    with MisbehavingServer(answer=two.world_writer) as server:
        users = "rollout.environments.kinds.tool_world.options.user.options.base_url"
        described = [str(two.EXAMPLES / f"{name}.md") for name in ("library", "clinic")]
        settings = {"synth.teacher.base_url": server.url, users: server.url, "policy.path": str(policy), **TINY}
        settings["synth.tool_worlds.descriptions"] = described
        Home(home).claim(load_config("tool_world", [f"{key}={json.dumps(value)}" for key, value in settings.items()]))
        with open_context(home) as context:
            work(context, "t1-synth-toolworld", "synth", lambda run: synthesise(context, run, 1, "toolworld"))
            work(context, "t0-init", "init", lambda run: initialise(context, run))
            work(context, "t1-sft", "sft", lambda run: finetune(context, run, 1, "t0-init"))
            work(context, "t1-rl", "rl", lambda run: reinforce(context, run, 1, "t1-sft"))
    with Lake(home, read_only=True) as lake:
        tasks, runs = {task.key: task for task in lake.tasks()}, lake.trajectories("stage = 'rl'")
        digests = {policy.id: policy.weights_digest for policy in lake.policies()}
        scores, metrics = {score.trajectory_id: score for score in lake.scores()}, {each.name for each in lake.metrics("t1-rl")}
    assert {task.provenance["described_in"] for task in tasks.values()} == {"library", "clinic"} and len(tasks) >= 8
    assert len(runs) == 2 * 4 * 4 and {run.step for run in runs} == {1, 2} and "weight_difference" in metrics
    outcomes: dict[str, set[Outcome | None]] = defaultdict(set)
    for run in runs:
        outcomes[run.task_key].add(run.outcome)
    assert {Outcome.SUCCESS, Outcome.FAILURE} in outcomes.values(), {run.error for run in runs}
    assert set().union(*outcomes.values()) == {Outcome.SUCCESS, Outcome.FAILURE}
    assert {score.verifier for score in scores.values()} == {"state"} and digests["t1-rl"] != digests["t1-sft"]
    for run in runs:
        assert run.reward == (scores[run.id].value or 0.0)
