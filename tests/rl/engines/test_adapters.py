"""Adapters that real vLLM engines serve."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from rl.learner.base import EngineWeights
from rl.learner.config import LearnerConfig, LoraConfig, ReinforceConfig
from rl.policies.policy import load_policy
from rl.policies.transfer import CONFIG, WEIGHTS, is_adapters, read_adapters
from rl.rollouts.rollout import Rollouts
from tests.rl.engines.learner_end import RANK, EngineSampler, adapted, said, start, versions
from tests.rl.engines.probing import engine_processes, prompts, worst_difference
from tests.rl.toy import Scripted, learn

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def engines(tiny_policy: Path) -> Iterator[Rollouts]:
    with start(tiny_policy, transfer="files", adapter_rank=RANK) as started:
        yield started


def difference(models: dict[int, PreTrainedModel], engines: Rollouts) -> float:
    """How far what the engines say is from what these models do, by the versions that the tokens bear."""
    return worst_difference(models, prompts(6), said(engines))


@pytest.mark.long
@pytest.mark.engine
def test_an_engine_switches_between_full_policies_and_adapters(
    engines: Rollouts, tiny_policy: Path, other_policy: Path, tmp_path: Path
) -> None:
    models = {0: load_policy(tiny_policy)[0], 1: adapted(tiny_policy, tmp_path / "1"), 2: adapted(tiny_policy, tmp_path / "2", seed=1)}
    models |= {3: load_policy(other_policy)[0], 4: models[1]}
    folders = {0: tiny_policy, 1: tmp_path / "1", 2: tmp_path / "2", 3: other_policy, 4: tmp_path / "1"}
    for version, folder in folders.items():
        engines.load_weights(folder, version)
        generations = said(engines)
        assert versions(generations) == {version}
        assert worst_difference(models, prompts(6), generations) < TOLERANCE
    assert worst_difference({4: models[0]}, prompts(6), said(engines)) > 100 * TOLERANCE, "adapters make a difference that can be seen"


@pytest.mark.long
@pytest.mark.engine
def test_a_run_continues_when_an_engine_is_killed_while_loading_adapters(engines: Rollouts, tiny_policy: Path, tmp_path: Path) -> None:
    before = engines.figures()
    check_run(engines, tiny_policy, tmp_path, LearnerConfig(), kill_at=2)
    assert engines.figures().replacements - before.replacements == 1


def check_run(engines: Rollouts, policy: Path, folder: Path, learner: LearnerConfig, kill_at: int | None = None) -> None:
    """Learn for three steps: each version is adapters of the same policy, which engines and learner agree about; the result is whole."""
    engines.load_weights(policy, 0)
    sampler, loaded, differences = EngineSampler(engines, folder), list[Path](), list[float]()

    def publish(path: Path, version: int) -> None:
        assert read_adapters(path).base == str(policy.resolve())
        assert {file.name for file in path.iterdir()} == {CONFIG, WEIGHTS}
        loaded.append(path)
        if version == kill_at:
            engine_processes()[0].send_signal(signal.SIGKILL)
        engines.load_weights(path, version)
        sampler.versions.append(version)

    def take(step: int, figures: dict[str, float]) -> None:
        differences.append(figures["logprob_difference"])

    config = ReinforceConfig(
        steps=3, tasks_per_step=2, samples_per_task=4, trajectories_per_pass=4, learning_rate=3e-3, lora=LoraConfig(rank=RANK, alpha=8),
        learner=learner,
    )  # fmt: skip
    result = learn(policy, folder, config, Scripted(sampler.collect, publish, take, engines=EngineWeights(adapters=True)), 1)
    assert [path.name for path in loaded] == ["000000", "000001", "000002", "000003"]
    assert len(differences) == 3 and max(differences) < TOLERANCE, "each step was sampled with the adapters that the learner had"
    assert not is_adapters(result.path)
    merged = load_policy(result.path)[0]
    assert difference({3: merged}, engines) < TOLERANCE < difference({3: load_policy(policy)[0]}, engines)
