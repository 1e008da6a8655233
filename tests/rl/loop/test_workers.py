"""Two workers of Ray's, joined by gloo, learn what one process learns: the same losses, the same metrics, the same weights."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rl.curriculum import Curriculum, CurriculumConfig, GateConfig
from rl.hardware import torch_threads
from rl.learner.config import CorrectionConfig, CriticConfig, LearnerConfig, ReinforceConfig
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


@pytest.fixture(scope="module", autouse=True)
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
    """The same metrics step by step, but for those of the clock and of memory, and those that TRL takes as means of the means of passes."""
    assert len(one) == len(two) > 0
    for ours, theirs in zip(one, two, strict=True):
        names, others = ([name for name in each if not name.startswith(OF_PASSES) and not name.endswith(CLOCKS)] for each in (ours, theirs))
        assert set(names) == set(others)
        assert {"loss", "grad_norm"} <= set(names)
        assert {name: theirs[name] for name in names} == pytest.approx({name: ours[name] for name in names}, abs=1e-5)


@pytest.mark.long
def test_a_single_worker_of_rays_learns_by_itself_what_this_process_learns(
    policy: Path, examples: list[EncodedExample], tmp_path: Path
) -> None:
    """As a learner with a GPU does. In a group, even of one, accelerate would wrap the model."""
    metrics: dict[str, list[dict[str, float]]] = {"here": [], "there": []}
    train_cpt(policy, examples, tmp_path / "here", PRE_TRAINING, 1, lambda step, found: metrics["here"].append(found))
    folder = tmp_path / "there"

    def work(starter: Starter) -> str:
        from accelerate.state import PartialState

        train_cpt(policy, examples, folder, PRE_TRAINING, 1, starter.function("on_metric"))
        return PartialState().distributed_type.name

    functions = {"on_metric": lambda step, found: metrics["there"].append(found)}
    assert learn_on_workers(LearnerConfig(), None, work, functions) == "NO"
    assert_close(metrics["here"], metrics["there"])
    assert weights_differ(tmp_path / "here", folder) < 1e-6


class Run:
    """A run of reinforcement learning on the same trajectories at each step, killed at step `last` or told to end after step `end`."""

    def __init__(self, sampled: Sequence[Trajectory], last: int = 99, end: int = 99) -> None:
        self.metrics: list[dict[str, float]] = []
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

    def _see(self, step: int, metrics: dict[str, float]) -> bool:
        self.metrics.append(metrics)
        return step == self._end

    def _drop(self, step: int, drops: Sequence[RejectedSample]) -> None:
        self.drops += [(step, drop.trajectory_id) for drop in drops]


def of_a_far_policy(trajectory: Trajectory) -> Trajectory:
    """The trajectory as if something had sampled it that would hardly ever say so."""
    turns = (replace(turn, action_logprobs=(-30.0,) * len(turn.action_ids)) for turn in trajectory.turns)
    return replace(trajectory, turns=tuple(turns))


@pytest.mark.long
def test_two_workers_make_the_losses_and_the_updates_of_one_also_where_they_were_killed(
    policy: Path, sampled: list[Trajectory], tmp_path: Path
) -> None:
    config = REINFORCE.model_copy(update={"entropy_bonus": 0.05, "beta": 0.05, "tasks_per_step": 8})  # more passes than rows
    shared = config.model_copy(update={"learner": TWO})
    one, killed, resumed = Run(sampled), Run(sampled, last=2), Run(sampled)
    one.learn(policy, tmp_path / "one", config)
    with pytest.raises(KeyboardInterrupt):
        killed.learn(policy, tmp_path / "two", shared)
    resumed.learn(policy, tmp_path / "two", shared)
    assert (one.published, killed.published, resumed.published) == ([0, 1, 2], [0, 1], [1, 2])
    assert_close(one.metrics, killed.metrics + resumed.metrics)
    assert one.horizons == killed.horizons + resumed.horizons == [2, 3]
    assert weights_differ(tmp_path / "one", policy) > 1e-3
    assert weights_differ(tmp_path / "one", tmp_path / "two") < ROUNDING


@pytest.mark.long
def test_two_workers_make_the_updates_of_ppo_reject_what_one_does_and_end_where_they_are_told(
    policy: Path, sampled: list[Trajectory], tmp_path: Path
) -> None:
    changes = {"estimator": "vtrace", "loss_type": "grpo", "critic": CriticConfig(warmup_steps=1), "epochs": 2, "steps": 3}
    config = REINFORCE.model_copy(update={**changes, "correction": CorrectionConfig(weights="truncated", reject="mean", reject_above=5)})
    given = [*sampled[:2], of_a_far_policy(sampled[2]), *sampled[3:]]
    one = Run(given, end=2).learn(policy, tmp_path / "one", config)
    two = Run(given, end=2).learn(policy, tmp_path / "two", config.model_copy(update={"learner": TWO}))
    assert one.drops == two.drops == [(1, sampled[2].id), (2, sampled[2].id)]
    assert one.published == two.published == [0, 1, 2]
    assert_close(one.metrics, two.metrics)
    moved = weights_differ(tmp_path / "one", policy)
    assert moved > 1e-3
    assert weights_differ(tmp_path / "one", tmp_path / "two") < 0.05 * moved  # AdamW makes much of rounding where a gradient is near 0


@pytest.mark.long
def test_two_workers_pre_train_as_one_does(policy: Path, examples: list[EncodedExample], tmp_path: Path) -> None:
    metrics: dict[str, list[dict[str, float]]] = {"one": [], "two": []}
    for name, learner in (("one", LearnerConfig()), ("two", TWO)):
        settings = PRE_TRAINING.model_copy(update={"learner": learner})
        result = train_cpt(policy, examples, tmp_path / name, settings, 1, lambda step, new, name=name: metrics[name].append(new))  # type: ignore[misc]
        assert result.metrics["steps"] == len(metrics[name]) == 5
    assert_close(metrics["one"], metrics["two"])
    assert weights_differ(tmp_path / "one", policy) > 1e-3
    assert weights_differ(tmp_path / "one", tmp_path / "two") < ROUNDING


@pytest.mark.long
def test_weights_in_shards_are_updated_like_whole_ones_and_written_whole(
    policy: Path, examples: list[EncodedExample], tmp_path: Path
) -> None:
    train_cpt(policy, examples, tmp_path / "one", PRE_TRAINING, 1, lambda step, metrics: None)
    seen = learn_on_workers(TWO, None, lambda starter: pre_train_in_shards(policy, examples, tmp_path / "two"), {})
    assert seen == {"weights": True, "gradients": True}
    assert weights_differ(tmp_path / "one", tmp_path / "two") < ROUNDING


def pre_train_in_shards(policy: Path, examples: list[EncodedExample], output: Path) -> dict[str, bool]:
    """Pre-train in a worker as FSDP does on GPUs, which accelerate must be told of; whether weights were in shards, and gradients behind
    each pass.
    """
    from accelerate.state import DistributedType, PartialState
    from torch.distributed.tensor import DTensor

    from rl.supervised import training as supervised

    arguments, write, seen = supervised._arguments, supervised.write_policy, {"weights": list[bool](), "gradients": list[bool]()}

    def arguments_of_gpus(*given: Any) -> Any:
        made = arguments(*given)
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        return made

    def write_and_look(trainer: Any, *given: Any) -> None:
        seen["weights"].extend(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
        write(trainer, *given)

    class Trainer(supervised.PackedTrainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            loss = super().training_step(*given, **named)
            seen["gradients"].extend(isinstance(parameter.grad, DTensor) for parameter in self.model.parameters())
            return loss

    supervised._arguments, supervised.write_policy = arguments_of_gpus, write_and_look
    supervised.PackedTrainer = Trainer  # type: ignore[misc]
    of_gpus = {"learner": LearnerConfig(workers=2, gpus=1, sharded=True), "precision": "float32"}
    config = PRE_TRAINING.model_copy(update=of_gpus)
    supervised._train(policy, examples, output, config, 1, lambda step, metrics: None, masked=False)
    return {name: bool(each) and all(each) for name, each in seen.items()}


def test_what_cannot_be_shared_out_is_refused_before_anything_starts(policy: Path, examples: list[EncodedExample], tmp_path: Path) -> None:
    for changes in ({"rows_per_pass": 4}, {"contexts": (64, 256)}):
        with pytest.raises(RequestError, match=r"learner\.workers = 2 does not divide"):
            train_cpt(policy, examples, tmp_path, PRE_TRAINING.model_copy(update={**changes, "learner": TWO}), 1, print)
    with pytest.raises(ValidationError, match="no FSDP on CPUs"):
        LearnerConfig(workers=2, sharded=True)
    with pytest.raises(ValidationError, match="needs whole matrices"):
        CptConfig(optimizer="muon", learner=LearnerConfig(workers=2, gpus=1, sharded=True))
    assert ReinforceConfig(tasks_per_step=3, trajectories_per_pass=4, learner=TWO).passes == 3


@pytest.mark.long
def test_a_worker_that_is_killed_as_it_starts_is_a_fault(tmp_path: Path) -> None:
    def die(starter: Starter) -> None:
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(500)

    with pytest.raises(WorkerDied, match="a worker of the learner died, without a trace, as if by SIGKILL"):
        learn_on_workers(TWO, None, die, {})
