"""The profiles for GPUs turn the wheel on CPUs: their sizes made tiny, everything else as it stands as far as a CPU can."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rl.policies.transfer import CONFIG, WEIGHTS
from tests.chat_models import create_chat_model
from tests.watching import run_watched
from warehouse import Lake

pytestmark = [pytest.mark.end_to_end, pytest.mark.long, pytest.mark.timeout(1000)]

TINY = (
    "corpus.train.entities=300", "corpus.held_out.entities=200",
    "synth.webshaper.counts={1=8, 2=4}", "synth.demonstration_questions.counts={1=8, 2=4}",
    "sft.rows_per_step=2", "sft.rows_per_pass=1", "sft.warmup_steps=0",
    "rl.steps=2", "rl.tasks_per_step=2", "rl.samples_per_task=3", "rl.trajectories_per_pass=3", "rl.horizon.rounds=[2]",
    "rl.health.information_tasks=0", "rollout.limits.max_action_tokens=12", "rollout.limits.max_observation_tokens=64",
    "evaluation.horizon=2", "evaluation.suites.held_out.counts={1=4}", "evaluation.gate.validation.counts={1=4}",
    "rollout.concurrency=16", "rollout.environments.workers=1", "rollout.engine.kv_cache_gib=0.2", "rollout.engine.max_num_seqs=16",
    "rollout.engine.max_batched_tokens=8192", "rollout.ray.object_store_gib=0.1",
)  # fmt: skip
ON_CPUS = (
    "rollout.ray.address=null", "rollout.engine.count=1", "rollout.engine.tensor_parallel=1", "rollout.engine.gpus=0",
    "rollout.engine.transfer=files", "rollout.engine.dtype=float32", "rollout.engine.enforce_eager=true",
    "sft.learner={}", "rl.learner={}",
)  # fmt: skip


@pytest.mark.parametrize("profile", ["one_gpu", "eight_gpus", "cluster"])
def test_a_profile_for_gpus_turns_the_wheel(profile: str, tmp_path: Path) -> None:
    turn_the_wheel(profile, tmp_path)


def test_engines_that_sleep_between_their_turns_serve_the_adapters_that_are_trained(tmp_path: Path) -> None:
    published = turn_the_wheel("one_gpu", tmp_path, "sft.lora={rank=8}", "rl.lora={rank=8}", "rollout.engine.adapter_rank=8")
    assert {f"{version:06d}/{name}" for version in range(3) for name in (CONFIG, WEIGHTS)} <= published
    assert not [path for path in published if path.endswith("/model.safetensors")]
    assert (tmp_path / "home" / "policies" / "t1-rl" / "model.safetensors").is_file(), "the policy that is left is whole"


def turn_the_wheel(profile: str, folder: Path, *overrides: str) -> set[str]:
    """Run a tiny wheel of the profile to its end, with engines that had the learner's weights; returns the files that it published."""
    model, home = create_chat_model(folder / "model", positions=16_384), folder / "home"
    command = [sys.executable, "-m", "flows.cli", "run", "--profile", profile, "--home", str(home), "--set", f"policy.path={model}"]
    command += [part for override in (*TINY, *ON_CPUS, *overrides) for part in ("--set", override)]
    published = run_watched(command, home / "policies" / "t1-rl" / "weights", "*/*", 900)
    with Lake(home, read_only=True) as lake:
        assert {run.state for run in lake.runs()} == {"completed"}
        assert {policy.stage for policy in lake.policies()} == {"init", "sft", "rl"}
        sampled = lake.trajectories("stage = 'rl'")
        metrics = {metric.name: metric.value for metric in lake.metrics("t1-rl")}
    assert len(sampled) == 2 * 2 * 3 and {trajectory.error for trajectory in sampled} == {None}
    assert metrics["weight_difference"] < 1e-3, "the engines had the learner's weights after each of their rests"
    return published
