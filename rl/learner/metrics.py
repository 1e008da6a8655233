"""Figures of a step: what its trajectories came to, how far the learner is from the sampler, what actions say of their prompts.

Those of trajectories are over the valid ones, and absent where there is none: an unknown is never a zero.

Figures of a step that people with GPUs read first: where its time went, tokens a second, share of the peak, memory, token error.

`share/…` are of the whole step and add up to 1: `rollouts`, the learner waits for trajectories that are being sampled; `waiting`, the
rest of collecting them: rewards, filters, the lake; `sync`, weights are gathered, written, sent and loaded; `learning`, all else. A step
begins with publishing and ends when its metrics are logged: writing a checkpoint, and what that waits for, belongs to no step.

The metric monitor: figures of a step against the limits that were set for them.

Reward tells of trouble last. Long before it falls, groups lose their variance, the likelihood of correct trajectories sinks, actions can no
longer be read, or engine and learner no longer compute the same. A limit that is broken for its number of steps warns, pauses or stops.

Experiment trackers that a training stage reports its figures to besides the lake, by the integrations of transformers.

Nothing leaves the machine unless the user says so: each tracker is given a folder of the home, `trackers/POLICY/TRACKER`, by the
environment variables that it reads, and one that is set already is left as it is.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean, pstdev
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl.advantages import has_signal
from rl.hardware import GIB, Architecture, device_of, model_flops_utilisation, training_flops
from rl.learner.batches import UNKNOWN, Row, group, is_valid
from rl.learner.config import MetricLimit, Tracker
from rl.rewards.reward import OK
from warehouse.errors import WorkFailed
from warehouse.records import Outcome, StopReason, Trajectory, Turn


def describe(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Figures of a step.

    `reward_deviation` is the mean over groups of the deviation within each, `zero_variance` the share of groups with nothing to compare,
    `truncated` the share that the horizon ended. `sampled_entropy` is the mean of -log π of the action tokens as they were sampled, in
    nats: an estimate of the entropy that is there also where nothing is learnt from a step. `correct_logprob` is the mean log-probability
    of the action tokens of successful trajectories: its decay comes before collapse (LLD, arXiv 2512.04220). `format/turn_k` and
    `tokens/turn_k` are the share of readable actions and the mean number of tokens of turn k, from 1.
    """
    kept = [trajectory for trajectory in trajectories if is_valid(trajectory)]
    figures = {"trajectories": float(len(trajectories)), "valid": len(kept) / len(trajectories) if trajectories else 0.0}
    if not kept:
        return figures
    return {**figures, **_rewards(kept), **_actions(kept), **_by_turn(kept)}


def _rewards(kept: Sequence[Trajectory]) -> dict[str, float]:
    groups = group(kept, {})[1]
    rewards = [trajectory.reward or 0.0 for trajectory in kept]
    within = [pstdev(row[valid].tolist()) for row, valid in zip(groups.rewards, groups.valid, strict=True) if valid.any()]
    return {
        "reward": fmean(rewards),
        "reward_std": pstdev(rewards),
        "reward_deviation": fmean(within),
        "success": fmean(trajectory.outcome is Outcome.SUCCESS for trajectory in kept),
        "zero_variance": 1 - has_signal(groups).double().mean().item(),
    }


def _actions(kept: Sequence[Trajectory]) -> dict[str, float]:
    calls = [call for trajectory in kept for turn in trajectory.turns for call in turn.tool_calls]
    correct = [value for trajectory in kept if trajectory.outcome is Outcome.SUCCESS for value in _logprobs(trajectory)]
    return {
        "turns": fmean(len(trajectory.turns) for trajectory in kept),
        "truncated": fmean(trajectory.stop_reason is StopReason.MAX_TURNS for trajectory in kept),
        "tool_calls": len(calls) / len(kept),
        "action_tokens": fmean(sum(len(turn.action_ids) for turn in trajectory.turns) for trajectory in kept),
        "sampled_entropy": -fmean(value for trajectory in kept for value in _logprobs(trajectory)),
        **({"tool_success": fmean(call.outcome == OK for call in calls)} if calls else {}),
        **({"correct_logprob": fmean(correct)} if correct else {}),
    }


def _by_turn(kept: Sequence[Trajectory]) -> dict[str, float]:
    turns: dict[int, list[Turn]] = defaultdict(list)
    for turn in chain.from_iterable(trajectory.turns for trajectory in kept):
        turns[turn.index + 1].append(turn)
    return {
        "format": fmean(turn.is_readable for turn in chain.from_iterable(turns.values())),
        **{f"format/turn_{number}": fmean(turn.is_readable for turn in of_turn) for number, of_turn in sorted(turns.items())},
        **{f"tokens/turn_{number}": fmean(len(turn.action_ids) for turn in of_turn) for number, of_turn in sorted(turns.items())},
    }


def _logprobs(trajectory: Trajectory) -> list[float]:
    return [value for turn in trajectory.turns for value in turn.action_logprobs]


def ratio_figures(log_ratios: Tensor) -> dict[str, float]:
    """Mean importance ratio and effective share of samples, of log π_learner - log π_sampler of action tokens, shape (tokens,).

    The effective share is (Σ w)² / (n Σ w²) with w = e^ratio: 1 where all weigh the same, 1 / n where one of them is all (Kish 1965).
    """
    weights = log_ratios.double().clamp(-20, 20).exp()
    share = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
    return {"importance_ratio": weights.mean().item(), "effective_samples": share.item()}


def staleness_figures(rows: Sequence[Row], version: int) -> dict[str, float]:
    """By how many versions of the weights the sampled tokens of `rows` are behind `version`: the mean, and that of the oldest.

    Nothing where no row has a token of a known version.
    """
    behind = [version - each for row in rows for each in row.versions if each != UNKNOWN]
    return {"staleness": fmean(behind), "staleness_max": float(max(behind))} if behind else {}


def crossed(trajectories: Sequence[Trajectory], tasks: int) -> list[Row]:
    """The first actions of up to `tasks` tasks under each other's prompts: row i · n + j is action i under prompt j, for n tasks.

    Of each task the first valid trajectory that begins with an action is taken; tasks by key. Empty where fewer than two tasks have one.
    """
    firsts: dict[str, Trajectory] = {}
    for trajectory in sorted(trajectories, key=lambda each: (each.task_key, each.sample)):
        if is_valid(trajectory) and trajectory.turns[0].action_ids:
            firsts.setdefault(trajectory.task_key, trajectory)
    chosen = list(firsts.values())[:tasks]
    if len(chosen) < 2:
        return []
    return [_row(prompt.prompt_ids, action.turns[0].action_ids) for action in chosen for prompt in chosen]


def prompt_information(scores: Tensor) -> float:
    """Mutual information of prompts and first actions, as a share of its highest, log N. RAGEN-2, arXiv 2604.06268.

    I = mean_i [log p(z_i | x_i) - log (1/N Σ_j p(z_i | x_j))], of `scores` (actions, prompts) = log p(z_i | x_j). At 0 actions are the same
    whatever was asked (template collapse, which entropy does not show), at 1 each belongs to its prompt alone.
    """
    count = len(scores)
    mixture = torch.logsumexp(scores.double(), dim=1) - math.log(count)
    return ((scores.double().diagonal() - mixture).mean() / math.log(count)).item()


def _row(prompt_ids: tuple[int, ...], action_ids: tuple[int, ...]) -> Row:
    size = len(action_ids)
    zeros = (0.0,) * size
    return Row(prompt_ids, action_ids, (1,) * size, zeros, zeros, (*[0] * (size - 1), 1), (0.0,))


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


@dataclass(frozen=True, slots=True)
class Alert:
    """A metric beyond its limit: its value at `step`, and the first of the steps in a row that it did so."""

    limit: MetricLimit
    value: float
    since: int
    step: int

    def __str__(self) -> str:
        return f"{self.limit.sign} is {self.value:.4g} at step {self.step} and {_demand(self.limit)}; it began at step {self.since}"


class TrainingHalted(WorkFailed):
    """A metric beyond its limit ended the training; the same command goes on from the last checkpoint where it was a pause."""

    def __init__(self, alert: Alert) -> None:
        super().__init__(f"training came to a {alert.limit.then}: {alert}")
        self.alert = alert

    def __reduce__(self) -> tuple[type[TrainingHalted], tuple[Alert]]:
        """An error of a learner's worker must come to the process that started it."""
        return type(self), (self.alert,)


@dataclass(slots=True)
class _Watch:
    """What is remembered of one limit: the highest value, and since when it is broken and for how many steps."""

    highest: float = -math.inf
    since: int = 0
    steps: int = 0


class MetricMonitor:
    """Watches figures step by step, and says when a limit has been broken for its number of steps."""

    def __init__(self, limits: Sequence[MetricLimit]) -> None:
        self._limits = tuple(limits)
        self._watches = [_Watch() for _ in self._limits]
        self.fatal: Alert | None = None
        """What pauses or stops the run, once there is such."""

    def check(self, step: int, figures: Mapping[str, float]) -> list[Alert]:
        """The limits that come to be broken with this step; a metric that the step does not have changes nothing."""
        alerts = []
        for limit, watch in zip(self._limits, self._watches, strict=True):
            value = figures.get(limit.sign)
            if value is not None and _observe(watch, limit, step, value):
                alerts.append(Alert(limit, value, watch.since, step))
        fatal = sorted((alert for alert in alerts if alert.limit.then != "warn"), key=lambda alert: alert.limit.then == "pause")
        self.fatal = fatal[0] if fatal else None
        return alerts

    def acknowledge(self) -> None:
        """Begin to count anew: whoever goes on after a pause has seen it."""
        for watch in self._watches:
            watch.since = watch.steps = 0

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, by limit, as JSON can hold it."""
        return {
            _key(limit): [None if watch.highest == -math.inf else watch.highest, watch.since, watch.steps]
            for limit, watch in zip(self._limits, self._watches, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of a checkpoint; a limit that it does not know begins anew."""
        for limit, watch in zip(self._limits, self._watches, strict=True):
            if _key(limit) in state:
                highest, watch.since, watch.steps = state[_key(limit)]
                watch.highest = -math.inf if highest is None else highest


def _observe(watch: _Watch, limit: MetricLimit, step: int, value: float) -> bool:
    """Take up one value; whether the limit is broken for its number of steps, just now."""
    broken = _breaks(value, limit, watch.highest)
    if math.isfinite(value):
        watch.highest = max(watch.highest, value)
    if not broken:
        watch.since = watch.steps = 0
        return False
    watch.since = watch.since or step
    watch.steps += 1
    return watch.steps == limit.steps


def _breaks(value: float, limit: MetricLimit, highest: float) -> bool:
    return (
        not math.isfinite(value)
        or (limit.below is not None and value < limit.below)
        or (limit.above is not None and value > limit.above)
        or (limit.falls is not None and value < highest - limit.falls)
    )


def _demand(limit: MetricLimit) -> str:
    bounds = {
        "not be below": limit.below,
        "not be above": limit.above,
        "not fall below its highest by more than": limit.falls,
    }
    bounded = [f"{words} {bound:.4g}" for words, bound in bounds.items() if bound is not None]
    return f"may {' and '.join(bounded)}" if bounded else "must be a finite number"


def _key(limit: MetricLimit) -> str:
    return limit.model_dump_json()


FOLDER = "trackers"


@contextmanager
def tracked(trackers: Sequence[Tracker], output: Path) -> Iterator[None]:
    """Have the trackers of what is trained within keep their files beside the policy in folder `output`."""
    own: dict[str, str] = {}
    for tracker in trackers:
        folder = output.resolve().parent.parent / FOLDER / output.name / tracker
        folder.mkdir(parents=True, exist_ok=True)
        own |= {name: value for name, value in _offline(tracker, folder).items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)


@contextmanager
def tracking(trackers: Sequence[Tracker], output: Path) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """A function that gives the metrics of a step to the trackers of the policy in folder `output`, by accelerate's trackers."""
    with tracked(trackers, output):
        opened = [_opened(tracker, output.name) for tracker in trackers]

        def track(step: int, figures: Mapping[str, float]) -> None:
            for tracker in opened:
                tracker.log({f"train/{name}": value for name, value in figures.items()}, step=step)

        try:
            yield track
        finally:
            for tracker in opened:
                tracker.finish()


def _opened(tracker: Tracker, name: str) -> Any:
    from accelerate.state import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # accelerate's trackers ask it for the main process
    kind = LOGGER_TYPE_TO_CLASS[tracker]
    opened: Any = kind(name, os.environ["TENSORBOARD_LOGGING_DIR"]) if kind.requires_logging_directory else kind(name)
    opened.start()
    return opened


def _offline(tracker: Tracker, folder: Path) -> Mapping[str, str]:
    """The environment variables that keep a tracker on this machine, and its files in `folder`."""
    match tracker:
        case "trackio":
            return {"TRACKIO_DIR": str(folder)}
        case "wandb":
            return {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
        case "tensorboard":
            return {"TENSORBOARD_LOGGING_DIR": str(folder)}
        case "mlflow":
            return {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}


def finite_figures(logs: Mapping[str, Any]) -> dict[str, float]:
    """The entries of `logs` that are finite numbers, without TRL's count of tokens, which is wrong for packed rows."""
    numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float) and name != "num_tokens"}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
