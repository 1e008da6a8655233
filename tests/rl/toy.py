"""The toy that tests of learning share: a tiny real policy that samples for itself, and trajectories made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl.engines.base import WeightProbe
from rl.engines.weight_sync import WeightSyncHandle
from rl.learner.base import EngineWeights, PassRecord, Stateful, TrainResult
from rl.learner.batches import Row
from rl.learner.config import ReinforceConfig
from rl.learner.local import LocalLearner
from rl.learner.losses import MicroBatch
from rl.learner.metrics import Alert, MetricMonitor
from rl.loop import ReinforceLoop, train
from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy, load_policy
from rl.renderers.examples import EncodedExample
from rl.rollouts.collect import Collected, RejectedSample
from warehouse.records import Call, Outcome, StopReason, Trajectory, Turn

SIZES = PolicyConfig(layers=2, width=32, heads=2, key_value_heads=2, intermediate_size=48, vocabulary_size=300)
FIRST_GOOD = 200
"""Tokens from this one on are rewarded: about a third of them."""
OBSERVATION = (50, 51, 52)


def make_policy(folder: Path) -> Path:
    """A policy of 2 layers in `folder`."""
    return create_policy(SIZES, ["Amber Stone"], [], folder, 1)


def encode_texts(policy: Path, texts: Sequence[str]) -> list[EncodedExample]:
    """Texts in the tokens of the policy in that folder, tags among them; every token is trained on."""
    tokenizer = load_policy(policy)[1]
    return [EncodedExample(tuple(ids), (True,) * len(ids)) for ids in tokenizer(list(texts))["input_ids"]]


def sample_pairs(policy: Path, samples: int = 4) -> list[Trajectory]:
    """Trajectories of `policy` on two tasks, rewarded by turns with 0 and 1."""
    sampler = Sampler(samples)
    sampler.publish(policy, 0)
    return [replace(each, reward=float(number % 2)) for number, each in enumerate(sampler.collect(1).trajectories)]


def stale_pairs(policy: Path) -> list[Trajectory]:
    """The same, of unequal length and from a sampler that was not quite this policy, so that some ratios are clipped on either side."""
    generator = torch.Generator().manual_seed(3)
    shortened = [replace(each, turns=each.turns[: 1 + (number // 3) % 2]) for number, each in enumerate(sample_pairs(policy))]
    return [replace(each, turns=tuple(_disturbed(turn, generator) for turn in each.turns)) for each in shortened]


def _disturbed(turn: Turn, generator: torch.Generator) -> Turn:
    noise = (0.4 * torch.randn(len(turn.action_logprobs), generator=generator)).tolist()
    return replace(turn, action_logprobs=tuple(value + more for value, more in zip(turn.action_logprobs, noise, strict=True)))


def trajectory(task: str, sample: int, turns: Sequence[Turn], reward: float | None) -> Trajectory:
    """A trajectory of the given turns; without a reward it is invalid."""
    outcome = Outcome.INVALID if reward is None else Outcome.SUCCESS if reward > 0.5 else Outcome.FAILURE
    started = datetime(2026, 1, 1, tzinfo=UTC)
    return Trajectory(
        f"{task}-{sample}", task, "p", "rl", 4, (2, 30, 3), tuple(turns), StopReason.ANSWERED, outcome, reward, 1, started, 0.1,
        sample=sample,
    )  # fmt: skip


def turn(index: int, ids: Sequence[int], logprobs: Sequence[float], observation: Sequence[int] = (), tool: str = "search") -> Turn:
    """A turn of the given tokens."""
    calls = () if tool is None else (Call(tool, None, "ok"),)
    return Turn(index, tuple(ids), tuple(logprobs), "", tool, None, tuple(observation), "", None, None, 0.0, 0, calls=calls)


class Sampler:
    """Collects trajectories of two turns from the published weights, the reward being the share of good tokens."""

    def __init__(self, samples: int = 8) -> None:
        self.samples = samples
        self.versions: list[int] = []
        self.model: PreTrainedModel

    def publish(self, path: Path, version: int) -> None:
        self.model = load_policy(path)[0].eval()
        self.versions.append(version)

    def collect(self, step: int) -> Collected:
        torch.manual_seed(step)
        contexts = [[2, 30, 3] for _ in range(2 * self.samples)]
        first = self.generate(contexts, 3)
        contexts = [[*context, *ids, *OBSERVATION] for context, (ids, _) in zip(contexts, first, strict=True)]
        second = self.generate(contexts, 3)
        return Collected(tuple(self.trajectory(number, *actions) for number, actions in enumerate(zip(first, second, strict=True))))

    def trajectory(self, number: int, first: tuple[list[int], list[float]], second: tuple[list[int], list[float]]) -> Trajectory:
        turns = [turn(0, *first, OBSERVATION), turn(1, *second, tool="answer")]
        actions = first[0] + second[0]
        good = sum(token >= FIRST_GOOD for token in actions) / len(actions)
        made = [replace(each, policy_version=self.versions[-1]) for each in turns]
        return trajectory(f"task-{number // self.samples}", number % self.samples, made, good)

    @torch.no_grad()
    def generate(self, contexts: list[list[int]], tokens: int) -> list[tuple[list[int], list[float]]]:
        """Sampled ids and their log-probabilities for contexts of equal length."""
        inputs = torch.tensor(contexts)
        output = self.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True, top_k=0,
            return_dict_in_generate=True, output_logits=True, eos_token_id=None,
        )  # fmt: skip
        ids = output.sequences[:, inputs.size(1) :]
        logprobs = torch.stack(output.logits, dim=1).log_softmax(-1).gather(2, ids.unsqueeze(2)).squeeze(2)
        return list(zip(ids.tolist(), logprobs.tolist(), strict=True))


def weights_differ(first: Path, second: Path) -> float:
    """The largest difference between the weights in two folders."""
    ours, theirs = (load_policy(folder)[0].state_dict() for folder in (first, second))
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


@torch.no_grad()
def good_probability(folder: Path) -> float:
    """Probability that the first action token is a good one."""
    return load_policy(folder)[0](torch.tensor([[2, 30, 3]])).logits[0, -1].softmax(-1)[FIRST_GOOD:].sum().item()


def _nothing(*arguments: Any) -> None:
    """For a run that publishes nowhere and records nothing."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """The sampler and the recorder of a run as functions."""

    collect: Callable[[int], Collected]
    publish: Callable[[Path, int], None] = _nothing
    record_metrics: Callable[[int, dict[str, float]], bool | None] = _nothing
    record_alert: Callable[[Alert], None] = _nothing
    record_drops: Callable[[int, Sequence[RejectedSample]], None] = _nothing
    probe: Callable[[], Sequence[WeightProbe]] = tuple
    weight_sync: WeightSyncHandle | None = None
    sent: Callable[[int], None] = _nothing
    engines: EngineWeights = field(default_factory=EngineWeights)
    state: Mapping[str, Stateful] = field(default_factory=dict)

    def load(self, folder: Path | None, version: int) -> None:
        if folder is None:
            self.sent(version)
        else:
            self.publish(folder, version)

    def metrics(self, step: int, figures: dict[str, float]) -> bool | None:
        return self.record_metrics(step, figures)

    def alert(self, alert: Alert) -> None:
        self.record_alert(alert)

    def drops(self, step: int, drops: Sequence[RejectedSample]) -> None:
        self.record_drops(step, drops)


def learn(policy: Path, output: Path, config: ReinforceConfig, run: Scripted, seed: int) -> TrainResult:
    """Train by the loop on what a scripted run samples."""
    return train(policy, output, config, seed, run, run, run.state, run.engines, run.weight_sync)


def rows_with_advantages(learner: LocalLearner, trajectories: Sequence[Trajectory], config: ReinforceConfig, step: int = 1) -> list[Row]:
    """The rows that a step learns from, of trajectories or of those that its correction leaves."""
    run = Scripted(lambda step: Collected(tuple(trajectories)))
    loop = ReinforceLoop(learner, run, run, config, {"monitor": MetricMonitor(())}, _nothing)
    return loop.advantages(step, run.collect(step))[0]


def batches_of(learner: LocalLearner, trajectories: Sequence[Trajectory], config: ReinforceConfig, step: int = 1) -> list[MicroBatch]:
    """The micro-batches that a step makes of trajectories, or of those that its correction leaves."""
    return learner.micro_batches(rows_with_advantages(learner, trajectories, config, step))


def gradients(learner: LocalLearner, batches: Sequence[MicroBatch]) -> Tensor:
    """The loss of micro-batches, with its gradient left in the learner's model."""
    loss = torch.stack([learner.loss.loss(learner.loss.model, inputs, PassRecord(), 0, False) for inputs in batches]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
