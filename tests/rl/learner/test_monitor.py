"""Signs of health: when a limit counts as broken, and that a run which breaks one says which and since when."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from rl.learner.config import MetricLimit, MonitorConfig, ReinforceConfig
from rl.learner.metrics import Alert, MetricMonitor, TrainingHalted, ratio_metrics
from tests.rl.toy import Sampler, Scripted, learn, weights_differ

pytestmark = pytest.mark.engine


def steps_of(monitor: MetricMonitor, sign: str, values: list[float | None], first: int = 1) -> dict[int, int]:
    """The steps at which `sign` comes to be broken, each with the step at which that began."""
    found = {}
    for step, value in enumerate(values, start=first):
        for alert in monitor.check(step, {} if value is None else {sign: value}):
            found[step] = alert.since
    return found


def test_a_limit_breaks_after_consecutive_steps_and_alerts_once() -> None:
    monitor = MetricMonitor([MetricLimit(sign="entropy", below=0.1, steps=3)])
    assert steps_of(monitor, "entropy", [0.5, 0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.3, 0.0]) == {7: 5}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_values_break_any_limit(value: float) -> None:
    assert steps_of(MetricMonitor([MetricLimit(sign="loss", then="stop")]), "loss", [0.1, value]) == {2: 2}


@pytest.mark.parametrize("stop", range(1, 9))
def test_a_resumed_monitor_equals_an_uninterrupted_one(stop: int) -> None:
    limits = [MetricLimit(sign="x", below=0.0, falls=0.5, steps=3)]
    values: list[float | None] = [1.0, 0.2, 0.1, 0.3, -1.0, 1.5, 0.4, 0.2, 0.1]
    whole = steps_of(MetricMonitor(limits), "x", values)
    first, second = MetricMonitor(limits), MetricMonitor(limits)
    found = steps_of(first, "x", values[:stop])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert found | steps_of(second, "x", values[stop:], stop + 1) == whole == {4: 2, 9: 7}


# Figures


def test_effective_sample_size_of_equal_and_of_extreme_weights() -> None:
    assert ratio_metrics(torch.zeros(8)) == {"importance_ratio": 1.0, "effective_samples": 1.0}
    assert ratio_metrics(torch.tensor([20.0, -20.0, -20.0, -20.0]))["effective_samples"] == pytest.approx(0.25)
    weights = [math.exp(value) for value in (0.5, -0.5, 1.0)]
    expected = sum(weights) ** 2 / (3 * sum(weight**2 for weight in weights))
    assert ratio_metrics(torch.tensor([0.5, -0.5, 1.0]))["effective_samples"] == pytest.approx(expected)


# Training


CONFIG = ReinforceConfig(steps=8, tasks_per_step=2, samples_per_task=8, trajectories_per_pass=16, learning_rate=3e-3, save_every=2)


def train(policy: Path, output: Path, limits: tuple[MetricLimit, ...], learning_rate: float) -> tuple[list[Alert], list[int]]:
    """The alerts and the steps of a training that may end before its time."""
    sampler, alerts, steps = Sampler(), list[Alert](), list[int]()
    config = CONFIG.model_copy(update={"health": MonitorConfig(limits=limits), "learning_rate": learning_rate})
    learn(policy, output, config, Scripted(sampler.collect, sampler.publish, lambda step, figures: steps.append(step), alerts.append), 1)
    return alerts, steps


def test_an_absurd_learning_rate_stops_the_run(policy: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingHalted, match="sampled_entropy") as stopped:
        train(policy, tmp_path / "out", (MetricLimit(sign="sampled_entropy", below=0.5, steps=2, then="stop"),), 30.0)
    alert = stopped.value.alert
    assert (alert.limit.then, alert.since, alert.step) == ("stop", 2, 3)
    assert alert.value < 0.5
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_paused_run_continues_and_ends_like_an_uninterrupted_one(policy: Path, tmp_path: Path) -> None:
    pause = (MetricLimit(sign="turns", above=1.0, steps=5, then="pause"),)
    with pytest.raises(TrainingHalted, match=r"pause: turns is 2 at step 5 .* began at step 1"):
        train(policy, tmp_path / "paused", pause, 3e-3)
    _, steps = train(policy, tmp_path / "paused", pause, 3e-3)
    assert steps == [6, 7, 8]
    train(policy, tmp_path / "whole", (), 3e-3)
    assert weights_differ(tmp_path / "paused", tmp_path / "whole") == 0
