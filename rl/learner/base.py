"""Protocol of the learner: score, update, publish, save/load. Implemented in this process or as a group of Ray actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from rl.learner.batches import Row
from rl.learner.metrics import StepTokens


class Scores(NamedTuple):
    """Per row, one value per completion token: log-probabilities, and critic values if there is a critic."""

    logprobs: list[list[float]]
    values: list[list[float]]


@dataclass(frozen=True, slots=True)
class Update:
    """Measurements of an update.

    Attributes:
        metrics: loss, grad_norm, learning_rate, entropy, clip_ratio/*, kl, importance_ratio, ...
        tokens: summed over all workers.
        flops: FLOPs per token; None if the model's sizes are unknown.
        device: name of the learner's GPU; empty on CPUs.
        differences: log π_learner - log π_engine of tokens sampled by the weights before the update, shape (tokens,).
    """

    metrics: dict[str, float]
    tokens: StepTokens
    flops: float | None
    device: str
    differences: Tensor


@dataclass(frozen=True, slots=True)
class EngineWeights:
    """How engines receive weights.

    Attributes:
        dtype: compute dtype of the engines, in which weights are sent.
        adapters: whether engines take adapters alone, if adapters are trained.
        in_turns: whether engines pause while the learner works; the learner then frees cached GPU memory for them.
    """

    dtype: str = "float32"
    adapters: bool = False
    in_turns: bool = False


@dataclass(frozen=True, slots=True)
class Encoding:
    """The policy's padding token, and its image placeholder token if it takes images."""

    pad_id: int
    placeholder_id: int | None


class Learner(Protocol):
    """A policy in training. Each method runs on all workers and returns when all are done."""

    encoding: Encoding

    def score(self, rows: Sequence[Row]) -> Scores:
        """Log-probabilities and critic values under the current weights."""

    def update(self, rows: Sequence[Row], step: int) -> Update:
        """Train on the rows of `step` (from 1) with `epochs` optimizer steps."""

    def publish(self, version: int, record: bool = False) -> Path | None:
        """Give the engines the current weights as `version`.

        Returns the folder that they must load, or None if the weights were sent. With `record` the folder is always written.
        """

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint after `step` with the loop's JSON-serializable `state`."""

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Restore the last complete checkpoint; return its step and the loop's state, or None without one."""

    def write(self, folder: Path) -> None: ...

    def close(self) -> None:
        """Finish pending writes, disconnect from the engines and free resources."""


@dataclass(slots=True)
class PassRecord:
    """Measurements of the passes of an update on one worker.

    Attributes:
        log_ratios: per pass, log π_learner - log π_sampler of its action tokens.
        differences: the same for tokens that the current weights sampled, before the first optimizer step.
    """

    log_ratios: list[Tensor] = field(default_factory=list)
    differences: list[Tensor] = field(default_factory=list)
    value_errors: list[float] = field(default_factory=list)
    tokens: StepTokens = field(default_factory=lambda: StepTokens(0))


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Folder of the trained policy, and metrics of the training."""

    path: Path
    metrics: dict[str, Any] = field(default_factory=dict)


class Stateful(Protocol):
    """State that checkpoints store and a resumed run restores."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-serializable state."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
