"""Two workers of Ray's, joined by gloo, learn what one process learns: the same losses, the same figures, the same weights."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from rl.curriculum import Curriculum, CurriculumConfig, GateConfig
from rl.hardware import torch_threads
from rl.learner.config import LearnerConfig, ReinforceConfig
from rl.learner.group import Starter, learn_on_workers
from rl.policies.policy import load_policy
from rl.ray_runtime import RayConfig, RayRuntime
from rl.renderers.examples import EncodedExample
from rl.rollouts.collect import Collected, RejectedSample
from rl.supervised.config import CptConfig
from rl.supervised.cpt import train_cpt
from rl.worker_death import WorkerDied
from tests.rl.toy import Scripted, encode_texts, learn, sample_pairs, weights_differ
from warehouse.errors import RequestError
from warehouse.records import Outcome, Trajectory

pytestmark = pytest.mark.engine

TWO = LearnerConfig(workers=2, cpus=0.5)
REINFORCE = ReinforceConfig(steps=2, tasks_per_step=2, samples_per_task=4, trajectories_per_pass=2, learning_rate=3e-3, save_every=1)
PRE_TRAINING = CptConfig(row_tokens=64, rows_per_step=4, rows_per_pass=1, warmup_steps=0, log_every=1)
TEXTS = [f"<information> Amber {number} lives in Blue {number * 7 % 10}.</information>" for number in range(40)]
CLOCKS = ("seconds", "step_time", "per_second", "memory_gib")
ROUNDING = 1e-4
"""Of weights after a few steps of AdamW at a rate of 3e-3, where rows go through the model in other company."""
OF_PASSES = ("share/", "entropy", "clip_ratio", "kl", "mean_token_accuracy")


@pytest.fixture(scope="module")
def ray_is_up() -> Iterator[None]:
    """One Ray for all, and one thread, which models of this size gain most from."""
    with torch_threads(1):
        runtime = RayRuntime(RayConfig(object_store_gib=0.1), cpus=2)
        yield
        runtime.close()


@pytest.fixture(scope="module")
def examples(policy: Path) -> list[EncodedExample]:
    return encode_texts(policy, TEXTS)


@pytest.fixture(scope="module")
def sampled(policy: Path) -> list[Trajectory]:
    """Trajectories of unequal length with rewards that differ, one of them invalid."""
    pairs = [replace(each, turns=each.turns[: 1 + number % 3]) for number, each in enumerate(sample_pairs(policy))]
    return [replace(pairs[0], outcome=Outcome.INVALID, reward=None), *pairs[1:]]


def assert_close(one: Sequence[dict[str, float]], two: Sequence[dict[str, float]]) -> None:
    """The same figures step by step, but for those of the clock and of memory, and those that TRL takes as means of the means of passes."""
    assert len(one) == len(two) > 0
    for ours, theirs in zip(one, two, strict=True):
        names, others = ([name for name in each if not name.startswith(OF_PASSES) and not name.endswith(CLOCKS)] for each in (ours, theirs))
        assert set(names) == set(others)
        assert {"loss", "grad_norm"} <= set(names)
        assert {name: theirs[name] for name in names} == pytest.approx({name: ours[name] for name in names}, abs=1e-5)


class Run:
    """A run of reinforcement learning on the same trajectories at each step, killed at step `last` or told to end after step `end`."""

    def __init__(self, sampled: Sequence[Trajectory], last: int = 99, end: int = 99) -> None:
        self.figures: list[dict[str, float]] = []
        self.drops: list[tuple[int, str]] = []
        self.published: list[int] = []
        self.horizons: list[int] = []
        self._sampled = tuple(sampled)
        self._last = last
        self._end = end
        self._curriculum = Curriculum(CurriculumConfig(rounds=(2, 3), gate=GateConfig(steps=1, success=0.01), hops=(1,)), [], 1)

    def learn(self, policy: Path, folder: Path, config: ReinforceConfig) -> Run:
        parts = {"curriculum": self._curriculum}
        learn(policy, folder, config, Scripted(self._collect, self._publish, self._see, record_drops=self._drop, state=parts), 1)
        return self

    def _collect(self, step: int) -> Collected:
        if step == self._last:
            raise KeyboardInterrupt
        self.horizons.append(self._curriculum.horizon(step))
        solved = {"outcome": Outcome.SUCCESS, "horizon": self.horizons[-1]}
        self._curriculum.observe(step, [replace(each, **solved) for each in self._sampled])
        return Collected(self._sampled)

    def _publish(self, folder: Path, version: int) -> None:
        assert load_policy(folder)[0].num_parameters() > 0
        self.published.append(version)

    def _see(self, step: int, figures: dict[str, float]) -> bool:
        self.figures.append(figures)
        return step == self._end

    def _drop(self, step: int, drops: Sequence[RejectedSample]) -> None:
        self.drops += [(step, drop.trajectory_id) for drop in drops]


@pytest.mark.usefixtures("ray_is_up")
@pytest.mark.long
def test_two_workers_equal_one_and_resume(policy: Path, sampled: list[Trajectory], tmp_path: Path) -> None:
    config = REINFORCE.model_copy(update={"entropy_bonus": 0.05, "beta": 0.05, "tasks_per_step": 8})  # more passes than rows
    shared = config.model_copy(update={"learner": TWO})
    one, killed, resumed = Run(sampled), Run(sampled, last=2), Run(sampled)
    one.learn(policy, tmp_path / "one", config)
    with pytest.raises(KeyboardInterrupt):
        killed.learn(policy, tmp_path / "two", shared)
    resumed.learn(policy, tmp_path / "two", shared)
    assert (one.published, killed.published, resumed.published) == ([0, 1, 2], [0, 1], [1, 2])
    assert_close(one.figures, killed.figures + resumed.figures)
    assert one.horizons == killed.horizons + resumed.horizons == [2, 3]
    assert weights_differ(tmp_path / "one", policy) > 1e-3
    assert weights_differ(tmp_path / "one", tmp_path / "two") < ROUNDING


def test_impossible_worker_settings_are_refused(policy: Path, examples: list[EncodedExample], tmp_path: Path) -> None:
    for changes in ({"rows_per_pass": 4}, {"contexts": (64, 256)}):
        with pytest.raises(RequestError, match=r"learner\.workers = 2 does not divide"):
            train_cpt(policy, examples, tmp_path, PRE_TRAINING.model_copy(update={**changes, "learner": TWO}), 1, print)
    with pytest.raises(ValidationError, match="no FSDP on CPUs"):
        LearnerConfig(workers=2, sharded=True)
    with pytest.raises(ValidationError, match="needs whole matrices"):
        CptConfig(optimizer="muon", learner=LearnerConfig(workers=2, gpus=1, sharded=True))
    assert ReinforceConfig(tasks_per_step=3, trajectories_per_pass=4, learner=TWO).passes == 3


@pytest.mark.usefixtures("ray_is_up")
@pytest.mark.long
def test_a_worker_that_is_killed_as_it_starts_is_a_fault(tmp_path: Path) -> None:
    def die(starter: Starter) -> None:
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(500)

    with pytest.raises(WorkerDied, match="a worker of the learner died, without a word, as by SIGKILL"):
        learn_on_workers(TWO, None, die, {})
