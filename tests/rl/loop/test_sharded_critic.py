"""PPO with FSDP2's shards: two gloo workers on CPUs, which accelerate takes for GPUs, make the updates of one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import broadcast_object_list

from rl.learner.base import EngineWeights
from rl.learner.batches import rows_of
from rl.learner.config import CriticConfig, LearnerConfig, LoraConfig, ReinforceConfig
from rl.learner.group import Starter, learn_on_workers
from rl.learner.metrics import MetricMonitor
from rl.loop import ReinforceLoop
from rl.policies.policy import load_policy
from rl.ray_runtime import RayConfig, RayRuntime
from rl.rollouts.collect import Collected
from tests.rl.loop.test_workers import TWO, assert_close
from tests.rl.toy import Scripted, learn, sample_pairs, weights_differ
from warehouse.records import Trajectory

pytestmark = [pytest.mark.engine, pytest.mark.long]

STEPS, STOPPED, WARMUP = 3, 2, 1
OF_GPUS = {"learner": LearnerConfig(workers=2, gpus=1, sharded=True), "precision": "float32"}
ALL_SEEN = {"weights": True, "head": True, "log-probabilities": True, "values": True}
"""The weights were in shards, the head was a unit of its own, and scores were no numbers in bfloat16."""


@pytest.fixture(scope="module", autouse=True)
def ray_is_up() -> Iterator[None]:
    runtime = RayRuntime(RayConfig(object_store_gib=0.1), cpus=2)
    yield
    runtime.close()


@pytest.mark.parametrize(
    ("estimator", "trunk_gradient", "lora", "stopped"),
    [
        ("bilevel_gae", 0.5, None, STOPPED),
        ("vtrace", 0.0, None, WARMUP),
        ("gae", 0.5, LoraConfig(rank=4, alpha=8), STOPPED),
    ],
)
def test_sharded_updates_equal_unsharded_ones_and_resume(
    policy: Path, tmp_path: Path, estimator: str, trunk_gradient: float, lora: LoraConfig | None, stopped: int
) -> None:
    """One of them stopped where the policy has had no gradient yet."""
    critic = CriticConfig(warmup_steps=WARMUP, trunk_gradient=trunk_gradient)
    config = ReinforceConfig(
        steps=STEPS, tasks_per_step=2, samples_per_task=4, trajectories_per_pass=2, learning_rate=3e-3, save_every=1, critic=critic,
        estimator=estimator, lora=lora,
    )  # fmt: skip
    sampled, figures = sample_pairs(policy), {"one": list[dict[str, float]](), "two": list[dict[str, float]]()}
    hooks = Scripted(lambda step: Collected(tuple(sampled)), publish, lambda step, found: figures["one"].append(found))
    learn(policy, tmp_path / "one", config, hooks, 1)

    for end in (stopped, STEPS):

        def see(step: int, found: dict[str, float], end: int = end) -> bool:
            figures["two"].append(found)
            return step == end

        sharded = config.model_copy(update=OF_GPUS)
        seen = learn_on_workers(
            TWO, None, lambda starter, sharded=sharded: learn_in_shards(policy, sampled, tmp_path / "two", sharded, starter),
            {"see": see, "publish": publish},
        )  # fmt: skip
        assert seen == ALL_SEEN
    assert_close(figures["one"], figures["two"])
    assert weights_differ(tmp_path / "one", policy) > 1e-3
    assert weights_differ(tmp_path / "one", tmp_path / "two") < 0.05 * weights_differ(tmp_path / "one", policy)


def publish(folder: Path, version: int) -> None:
    """Whatever is published is a whole policy, without the head."""
    assert load_policy(folder)[0].num_parameters() > 0


def finer_than_bfloat16(scores: Sequence[Sequence[float]]) -> bool:
    """Whether most of the numbers are none that bfloat16 has."""
    found = torch.tensor([each for row in scores for each in row])
    return bool((found.bfloat16() != found).float().mean() > 0.9)


def learn_in_shards(
    policy: Path, sampled: Sequence[Trajectory], output: Path, config: ReinforceConfig, starter: Starter
) -> dict[str, bool]:
    """Reinforcement learning in a worker as FSDP makes it on GPUs, which accelerate must be told of; what was seen of it at its end."""
    from accelerate.state import DistributedType, PartialState
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    from rl.learner import losses
    from rl.learner.local import load_learner

    torch.set_num_threads(1)
    arguments, seen = losses._arguments, dict[str, bool]()

    def arguments_of_gpus(*given: Any) -> Any:
        made = arguments(*given)
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        return made

    losses._arguments = arguments_of_gpus
    report = starter.function("see")
    run = Scripted(
        lambda step: Collected(tuple(sampled)),
        starter.function("publish"),
        lambda step, found: broadcast_object_list([report(step, found)])[0],  # all workers end with the main one
    )
    learner = load_learner(policy, output, config, 1, EngineWeights(), None)
    with closing(learner):
        ReinforceLoop(learner, run, run, config, {"monitor": MetricMonitor(config.health.limits)}, lambda step, found: None).run()
        assert learner.loss.critic is not None
        trained = [each for each in learner.loss.model.parameters() if each.requires_grad]
        seen["weights"] = all(isinstance(each, DTensor) for each in trained)
        seen["head"] = any(isinstance(each, FSDPModule) for each in learner.loss.critic.head.modules())
        seen["log-probabilities"], seen["values"] = map(finer_than_bfloat16, learner.score(rows_of(sampled, None)))
        learner.write(output)
    return seen
