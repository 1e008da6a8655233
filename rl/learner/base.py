"""The learner as the RL loop sees it: it scores, updates, publishes, and saves or loads. In this process or as a group of Ray actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from rl.learner.batches import Row
from rl.learner.metrics import StepTokens


class Scores(NamedTuple):
    """For each row, one number for each token of its completion: log-probabilities, and the critic's values where there is a critic."""

    logprobs: list[list[float]]
    values: list[list[float]]


@dataclass(frozen=True, slots=True)
class Update:
    """What an update measured.

    Attributes:
        figures: metrics of the step: loss, grad_norm, learning_rate, entropy, clip_ratio/*, kl, importance_ratio, ...
        tokens: those that went through the model, of all workers together.
        flops: operations of a token; None where the model's sizes do not say.
        device: the name of the learner's GPU; empty on CPUs.
        differences: log π_learner - log π_engine of the tokens that the weights before the update sampled, shape (tokens,).
    """

    figures: dict[str, float]
    tokens: StepTokens
    flops: float | None
    device: str
    differences: Tensor


@dataclass(frozen=True, slots=True)
class EngineWeights:
    """How engines take weights.

    Attributes:
        dtype: what they compute in, and what they are given.
        adapters: whether they take a version as its adapters alone, where adapters are trained.
        in_turns: whether they rest while the learner works, which then leaves them the GPU memory that it only keeps for later.
    """

    dtype: str = "float32"
    adapters: bool = False
    in_turns: bool = False


@dataclass(frozen=True, slots=True)
class Encoding:
    """Token ids of the policy in training: its padding, and what stands for an image, where it takes any."""

    pad_id: int
    placeholder_id: int | None


class Learner(Protocol):
    """A policy in training. Every verb is called once for all workers, and returns when all of them are done."""

    encoding: Encoding

    def score(self, rows: Sequence[Row]) -> Scores:
        """Log-probabilities and values of `rows` by the present weights."""

    def update(self, rows: Sequence[Row], step: int) -> Update:
        """Learn from the rows of a step (from 1): `epochs` optimizer steps on them."""

    def publish(self, version: int, record: bool = False) -> Path | None:
        """Give the engines the present weights as `version`.

        Returns the folder that they must load; None where they have been sent the weights. With `record` the folder is written in any case.
        """

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint behind `step`; `state` is what the loop remembers, as JSON can hold it."""

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Go on from the last whole checkpoint: its step and the loop's state; None where there is none."""

    def write(self, folder: Path) -> None:
        """Write the policy into `folder`."""

    def close(self) -> None:
        """Wait for what is being written, part from the engines, and give everything back."""


@dataclass(slots=True)
class PassRecord:
    """What the passes of an update measured, of this worker.

    Attributes:
        log_ratios: of each pass, log π_learner - log π_sampler of its action tokens.
        differences: the same of tokens that the present weights sampled, before the first optimizer step.
    """

    log_ratios: list[Tensor] = field(default_factory=list)
    differences: list[Tensor] = field(default_factory=list)
    value_errors: list[float] = field(default_factory=list)
    tokens: StepTokens = field(default_factory=lambda: StepTokens(0))


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The folder of the trained policy and what training measured."""

    path: Path
    figures: dict[str, Any] = field(default_factory=dict)


class Stateful(Protocol):
    """Whatever a resumed run must find as it was."""

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, as JSON can hold it."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint holds."""
