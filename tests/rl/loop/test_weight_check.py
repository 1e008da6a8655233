"""After each update every engine shows which weights it has: with others than the learner's the training ends before it learns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from rl.engines.base import WeightProbe
from rl.learner.config import MonitorConfig, ReinforceConfig
from rl.learner.metrics import Alert, TrainingHalted
from rl.policies.policy import create_policy, load_policy
from rl.rollouts.collect import Collected
from tests.rl.toy import SIZES, Sampler, Scripted, learn

pytestmark = pytest.mark.engine

HEALTH = MonitorConfig(limits=(), weight_difference=1e-3)
CONFIG = ReinforceConfig(steps=3, tasks_per_step=2, samples_per_task=4, trajectories_per_pass=8, learning_rate=1e-2, health=HEALTH)
Probes = Callable[[Sampler], Sequence[WeightProbe]]


def probed(model: PreTrainedModel, engine: str = "engine-0") -> WeightProbe:
    """What an engine with the weights of `model` samples behind a prompt."""
    sampler = Sampler()
    sampler.model = model
    ((ids, logprobs),) = sampler.generate([[2, 30, 3]], 8)
    return WeightProbe(engine, (2, 30, 3), tuple(ids), tuple(logprobs))


def own(sampler: Sampler) -> list[WeightProbe]:
    """Of two engines that have what was published last."""
    return [probed(sampler.model, "engine-0"), probed(sampler.model, "engine-1")]


class Trained:
    """A training and what it called: figures by step, alerts, the steps that were collected, and what ended it."""

    def __init__(self, policy: Path, output: Path, probes: Probes) -> None:
        self.sampler, self.figures = Sampler(4), dict[int, dict[str, float]]()
        self.alerts, self.collected = list[Alert](), list[int]()
        run = Scripted(
            self._collect, self.sampler.publish, self.figures.__setitem__, self.alerts.append, probe=lambda: probes(self.sampler)
        )
        self.ended: TrainingHalted | None = None
        try:
            learn(policy, output, CONFIG, run, 1)
        except TrainingHalted as halted:
            self.ended = halted

    def _collect(self, step: int) -> Collected:
        self.collected.append(step)
        return self.sampler.collect(step)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """Another policy of the same shape."""
    return load_policy(create_policy(SIZES, ["Amber Stone"], [], tmp_path_factory.mktemp("other"), 2))[0].eval()


def test_engines_with_the_learners_weights_pass_the_check(policy: Path, tmp_path: Path) -> None:
    trained = Trained(policy, tmp_path, own)
    assert trained.ended is None
    assert trained.alerts == []
    assert list(trained.figures) == [1, 2, 3]
    assert all(0 <= figures["weight_difference"] < 1e-5 for figures in trained.figures.values())


def test_an_engine_with_other_weights_stops_training_before_the_first_step(policy: Path, other: PreTrainedModel, tmp_path: Path) -> None:
    trained = Trained(policy, tmp_path, lambda sampler: [probed(other)])
    assert trained.ended is not None
    assert (trained.ended.alert.limit.sign, trained.ended.alert.step) == ("weight_difference", 0)
    assert (trained.collected, trained.figures) == ([], {})
    assert not (tmp_path / "config.json").exists()


def test_an_engine_that_missed_an_update_is_detected(policy: Path, tmp_path: Path) -> None:
    first = load_policy(policy)[0].eval()
    trained = Trained(policy, tmp_path, lambda sampler: [probed(first)])
    assert trained.ended is not None
    assert (trained.ended.alert.step, trained.collected, list(trained.figures)) == (1, [1], [1])


@pytest.mark.parametrize("place", [0, 1])
def test_an_engine_with_nan_logprobs_stops_training(policy: Path, tmp_path: Path, place: int) -> None:
    def probes(sampler: Sampler) -> list[WeightProbe]:
        found = own(sampler)
        found[place] = replace(found[place], logprobs=(math.nan,) * len(found[place].logprobs))
        return found

    trained = Trained(policy, tmp_path, probes)
    assert trained.ended is not None
    assert math.isnan(trained.ended.alert.value)
