"""Figures of a step that people with GPUs read first: where its time went, tokens a second, share of the peak, memory, token error.

`share/…` are of the whole step and add up to 1: `rollouts`, the learner waits for trajectories that are being sampled; `waiting`, the
rest of collecting them: rewards, filters, the lake; `sync`, weights are gathered, written, sent and loaded; `learning`, all else. A step
begins with publishing and ends when its metrics are logged: writing a checkpoint, and what that waits for, belongs to no step.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl.devices import device_of, model_flops_utilisation, training_flops
from rl.memory import GIB, Architecture


@dataclass(slots=True)
class Stopwatch:
    """Adds up the seconds of `with` blocks."""

    _seconds: float = 0.0
    _since: float = 0.0

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._seconds += time.monotonic() - self._since

    def take(self) -> float:
        """The seconds since they were last taken."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step: publishing, collecting, all of it; and how the first two were spent.

    Attributes:
        settling: the part of `publish` before weights are loaded, in which rollouts end and are rewarded and stored.
        rollouts_in_settling: the part of `settling` that waits for trajectories that are being sampled.
        rollouts_in_collect: the same part of `collect`.
    """

    publish: float
    collect: float
    whole: float
    settling: float = 0.0
    rollouts_in_settling: float = 0.0
    rollouts_in_collect: float = 0.0

    @property
    def learning(self) -> float:
        """What is neither publishing nor collecting."""
        return max(self.whole - self.publish - self.collect, 1e-9)

    def shares(self) -> dict[str, float]:
        """By their names in the lake's `metrics`."""
        parts = {
            "rollouts": self.rollouts_in_settling + self.rollouts_in_collect,
            "waiting": self.settling - self.rollouts_in_settling + self.collect - self.rollouts_in_collect,
            "sync": self.publish - self.settling,
            "learning": self.learning,
        }
        return {f"share/{name}": seconds / max(self.whole, 1e-9) for name, seconds in parts.items()}


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Tokens of a step that a worker knows of.

    Attributes:
        sampled: those that engines sampled.
        learnt: those of all rows that the learner learnt from, in all its epochs.
        computed: those that went through its model, where prompts that rows share count once.
        pairs: twice the pairs of computed tokens and tokens that these attend to.
    """

    sampled: int
    learnt: int = 0
    computed: int = 0
    pairs: int = 0

    def with_pass(self, learnt: int, spans: Sequence[tuple[int, int]]) -> StepTokens:
        """The same with another pass: `spans` are, of each sequence of it, the tokens that stand before it and its own."""
        computed = sum(own for _, own in spans)
        return StepTokens(
            self.sampled,
            self.learnt + learnt,
            self.computed + computed,
            self.pairs + sum(own * (2 * before + own) for before, own in spans),
        )

    def together(self, parts: Sequence[StepTokens]) -> StepTokens:
        """Those of all workers, each of which knows what engines sampled for all."""
        learnt, computed, pairs = (sum(getattr(part, name) for part in parts) for name in ("learnt", "computed", "pairs"))
        return StepTokens(self.sampled, learnt, computed, pairs)

    @property
    def mean_row(self) -> float:
        """Twice as many tokens as a computed one attends to in the mean: without shared prompts, the mean row that a token stands in."""
        return self.pairs / max(self.computed, 1)


def speed_figures(times: StepTimes, tokens: StepTokens, flops: float | None, workers: int, device: str) -> dict[str, float]:
    """Shares, `step_seconds`, sampled tokens a second of the whole step, learnt tokens a second of learning, and `mfu` of those computed.

    Args:
        flops: operations of a token; None where the model's are not known.
        device: the name of the learner's GPU; `mfu` is absent where there is none, or one whose peak is not in the table.
    """
    figures = {
        **times.shares(),
        "step_seconds": times.whole,
        "sampled_tokens_per_second": tokens.sampled / max(times.whole, 1e-9),
        "learner_tokens_per_second": tokens.learnt / times.learning,
    }
    found = device_of(device)
    rate = tokens.computed / times.learning
    share = None if flops is None or found is None else model_flops_utilisation(rate, flops, found.teraflops, workers)
    return figures if share is None else {**figures, "mfu": share}


def flops_of(model: PreTrainedModel, mean_row: float) -> float | None:
    """Operations of a token of `model`, in rows of so many tokens: a token attends to half of them. None where its sizes do not say."""
    config: Mapping[str, object] = model.config.to_dict()
    try:
        sizes = Architecture.of_config(config)
    except (ValueError, TypeError):
        return None
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return training_flops(sizes.matrices, min(trained, sizes.matrices), sizes.layers, sizes.width, mean_row / 2)


def device_name() -> str:
    """The GPU that this process computes on; empty on CPUs."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def peak_memory_gib() -> float:
    """What this process had allocated of its GPU at the most since this was last asked; on CPUs, the most that it ever held of memory."""
    if not torch.cuda.is_available():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    peak = torch.cuda.max_memory_allocated() / GIB
    torch.cuda.reset_peak_memory_stats()
    return peak


def sampler_errors(log_ratios: Tensor) -> dict[str, float]:
    """How far engine and learner are apart on tokens that both have the same weights for, of log π_learner - log π_engine, shape (tokens,).

    `logprob_difference` is the largest difference in nats. `token_mult_prob_error` is the mean of e^|difference|, 1 where both agree, and
    `gen_kl_error` the mean of e^d - d - 1, Schulman's estimate of the divergence of the engine from the learner; both as NeMo RL has them,
    whose runs are held to a `token_mult_prob_error` below 1.05 to 1.1.
    """
    exact = log_ratios.double()
    return {
        "logprob_difference": exact.abs().max().item(),
        "token_mult_prob_error": exact.abs().exp().mean().item(),
        "gen_kl_error": (exact.exp() - exact - 1).mean().item(),
    }
