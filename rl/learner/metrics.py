"""Metrics of a step (trajectories, off-policyness, speed), the monitor of metric limits, and experiment trackers.

Trajectory metrics are over valid trajectories and absent if there are none, never 0. `share/…` are fractions of the step's time and sum to
1: `rollouts` (waiting for sampling), `waiting` (rest of collecting: rewards, filters, lake), `sync` (gathering, writing, sending, loading
weights), `learning`. A step begins with publishing and ends when its metrics are logged; checkpoints belong to no step.
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
from warehouse.records import OFFERED, RERENDERED, Outcome, StopReason, Trajectory, Turn


def describe(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of a step's trajectories.

    `reward_deviation`: mean deviation within groups. `zero_variance`: fraction of groups without signal. `truncated`: fraction ended by the
    horizon. `sampled_entropy`: mean of -log π of sampled action tokens. `correct_logprob`: mean log-probability of action tokens of
    successful trajectories; it decays before a collapse (LLD, arXiv 2512.04220). `format/turn_k` and `tokens/turn_k`: fraction of readable
    actions and mean tokens of turn k, from 1. `contexts`: mean number of contexts, if any trajectory has several. `rerendered_tokens`: mean
    tokens of replies that an agent's rewritten history holds as text instead of as sampled, if there are any. For `tool_errors`,
    `without_calls` and `unjudged_tasks` see `_oversights`.
    """
    kept = [trajectory for trajectory in trajectories if is_valid(trajectory)]
    metrics = {"trajectories": float(len(trajectories)), "valid": len(kept) / len(trajectories) if trajectories else 0.0}
    metrics |= _oversights(trajectories)
    if not kept:
        return metrics
    return {**metrics, **_rewards(kept), **_actions(kept), **_by_turn(kept)}


def _oversights(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of mistakes in a setup, over all trajectories, invalid ones included; each is absent where there is nothing to count.

    `tool_errors`: fraction of tool calls that were wrong or broke the tool. `without_calls`: fraction without a tool call, of trajectories
    that were offered tools and more than one turn. `unjudged_tasks`: fraction of tasks without a verdict, of those with a trajectory that
    ended without a fault.
    """
    called = [call.outcome for trajectory in trajectories for turn in trajectory.turns for call in turn.tool_calls if call.outcome]
    ended = [trajectory for trajectory in trajectories if trajectory.stop_reason is not StopReason.FAULT]
    able = [trajectory for trajectory in ended if trajectory.horizon > 1 and trajectory.provenance.get(OFFERED)]
    judged: dict[str, bool] = {}
    for trajectory in ended:
        judged[trajectory.task_key] = judged.get(trajectory.task_key, False) or trajectory.outcome in (Outcome.SUCCESS, Outcome.FAILURE)
    return {
        **({"tool_errors": fmean(outcome in ("error", "fault") for outcome in called)} if called else {}),
        **({"without_calls": fmean(not any(turn.tool_calls for turn in each.turns) for each in able)} if able else {}),
        **({"unjudged_tasks": 1 - fmean(judged.values())} if judged else {}),
    }


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
    contexts = [len(trajectory.segments) for trajectory in kept]
    rerendered = [trajectory.provenance.get(RERENDERED, 0) for trajectory in kept]
    return {
        "turns": fmean(len(trajectory.turns) for trajectory in kept),
        "truncated": fmean(trajectory.stop_reason is StopReason.MAX_TURNS for trajectory in kept),
        "tool_calls": len(calls) / len(kept),
        "action_tokens": fmean(sum(len(turn.action_ids) for turn in trajectory.turns) for trajectory in kept),
        "sampled_entropy": -fmean(value for trajectory in kept for value in _logprobs(trajectory)),
        **({"contexts": fmean(contexts)} if max(contexts) > 1 else {}),
        **({"rerendered_tokens": fmean(rerendered)} if any(rerendered) else {}),
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


def ratio_metrics(log_ratios: Tensor) -> dict[str, float]:
    """Mean importance ratio and effective sample fraction, from log π_learner - log π_sampler of action tokens (tokens,).

    The effective fraction is (Σ w)² / (n Σ w²) with w = e^ratio (Kish 1965).
    """
    weights = log_ratios.double().clamp(-20, 20).exp()
    share = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
    return {"importance_ratio": weights.mean().item(), "effective_samples": share.item()}


def staleness_metrics(rows: Sequence[Row], version: int) -> dict[str, float]:
    """Mean and maximum number of versions that sampled tokens lag behind `version`; empty if no version is known."""
    behind = [version - each for row in rows for each in row.versions if each != UNKNOWN]
    return {"staleness": fmean(behind), "staleness_max": float(max(behind))} if behind else {}


def crossed(trajectories: Sequence[Trajectory], tasks: int) -> list[Row]:
    """First actions of up to `tasks` tasks under each other's prompts: row i · n + j is action i under prompt j, for n tasks.

    Uses each task's first valid trajectory that begins with an action, tasks sorted by key. Empty for fewer than two tasks.
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
    """Mutual information of prompts and first actions as a fraction of its maximum log N. RAGEN-2, arXiv 2604.06268.

    I = mean_i [log p(z_i | x_i) - log (1/N Σ_j p(z_i | x_j))], from `scores` (actions, prompts) = log p(z_i | x_j). 0 means that actions
    ignore their prompt (template collapse, which entropy does not show).
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
    """Accumulates the seconds spent in `with` blocks."""

    _seconds: float = 0.0
    _since: float = 0.0

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._seconds += time.monotonic() - self._since

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations of a step in seconds.

    Attributes:
        settling: part of `publish` before weights load, while rollouts end and are rewarded and stored.
        rollouts_in_settling, rollouts_in_collect: parts spent waiting for sampling.
    """

    publish: float
    collect: float
    whole: float
    settling: float = 0.0
    rollouts_in_settling: float = 0.0
    rollouts_in_collect: float = 0.0

    @property
    def learning(self) -> float:
        return max(self.whole - self.publish - self.collect, 1e-9)

    def shares(self) -> dict[str, float]:
        """Fractions of the step by their names in the lake's `metrics`."""
        parts = {
            "rollouts": self.rollouts_in_settling + self.rollouts_in_collect,
            "waiting": self.settling - self.rollouts_in_settling + self.collect - self.rollouts_in_collect,
            "sync": self.publish - self.settling,
            "learning": self.learning,
        }
        return {f"share/{name}": seconds / max(self.whole, 1e-9) for name, seconds in parts.items()}


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Token counts of a step.

    Attributes:
        sampled: by engines.
        learnt: of all rows, in all epochs.
        computed: through the model, with a shared prompt counted once.
        pairs: twice the number of (token, attended token) pairs.
    """

    sampled: int
    learnt: int = 0
    computed: int = 0
    pairs: int = 0

    def with_pass(self, learnt: int, spans: Sequence[tuple[int, int]]) -> StepTokens:
        """Add a pass; `spans` are (tokens before it, own tokens) of each sequence."""
        computed = sum(own for _, own in spans)
        return StepTokens(
            self.sampled,
            self.learnt + learnt,
            self.computed + computed,
            self.pairs + sum(own * (2 * before + own) for before, own in spans),
        )

    def together(self, parts: Sequence[StepTokens]) -> StepTokens:
        """Sum over workers; `sampled` is already global."""
        learnt, computed, pairs = (sum(getattr(part, name) for part in parts) for name in ("learnt", "computed", "pairs"))
        return StepTokens(self.sampled, learnt, computed, pairs)

    @property
    def mean_row(self) -> float:
        """Twice the mean number of attended tokens; without shared prompts, the mean row length."""
        return self.pairs / max(self.computed, 1)


def speed_metrics(times: StepTimes, tokens: StepTokens, flops: float | None, workers: int, device: str) -> dict[str, float]:
    """Time fractions, `step_seconds`, tokens per second, and `mfu` if `flops` per token and the device's peak are known."""
    metrics = {
        **times.shares(),
        "step_seconds": times.whole,
        "sampled_tokens_per_second": tokens.sampled / max(times.whole, 1e-9),
        "learner_tokens_per_second": tokens.learnt / times.learning,
    }
    found = device_of(device)
    rate = tokens.computed / times.learning
    share = None if flops is None or found is None else model_flops_utilisation(rate, flops, found.teraflops, workers)
    return metrics if share is None else {**metrics, "mfu": share}


def flops_of(model: PreTrainedModel, mean_row: float) -> float | None:
    """FLOPs per token of `model` in rows of `mean_row` tokens, half of which a token attends to; None for unknown architectures."""
    config: Mapping[str, object] = model.config.to_dict()
    try:
        sizes = Architecture.of_config(config)
    except (ValueError, TypeError):
        return None
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return training_flops(sizes.matrices, min(trained, sizes.matrices), sizes.layers, sizes.width, mean_row / 2)


def device_name() -> str:
    """Name of this process's GPU; empty on CPUs."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def peak_memory_gib() -> float:
    """Peak GPU memory in GiB since the last call; on CPUs, peak memory of the process."""
    if not torch.cuda.is_available():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    peak = torch.cuda.max_memory_allocated() / GIB
    torch.cuda.reset_peak_memory_stats()
    return peak


def sampler_errors(log_ratios: Tensor) -> dict[str, float]:
    """Log-probability errors between engine and learner with the same weights, from log π_learner - log π_engine (tokens,).

    `logprob_difference` is the maximum in nats, `token_mult_prob_error` the mean of e^|d|, `gen_kl_error` the mean of e^d - d - 1
    (Schulman's KL estimate); the last two as in NeMo RL, which requires a `token_mult_prob_error` below 1.05 to 1.1.
    """
    exact = log_ratios.double()
    return {
        "logprob_difference": exact.abs().max().item(),
        "token_mult_prob_error": exact.abs().exp().mean().item(),
        "gen_kl_error": (exact.exp() - exact - 1).mean().item(),
    }


@dataclass(frozen=True, slots=True)
class Alert:
    """A metric beyond its limit at `step`; `since` is the first of the consecutive violations."""

    limit: MetricLimit
    value: float
    since: int
    step: int

    def __str__(self) -> str:
        return f"{self.limit.sign} is {self.value:.4g} at step {self.step} and {_demand(self.limit)}; this began at step {self.since}"


class TrainingHalted(WorkFailed):
    """A metric limit ended training; after a pause the same command resumes from the last checkpoint."""

    def __init__(self, alert: Alert) -> None:
        super().__init__(f"training ended with a {alert.limit.then}: {alert}")
        self.alert = alert

    def __reduce__(self) -> tuple[type[TrainingHalted], tuple[Alert]]:
        """Pickle support, to cross process boundaries."""
        return type(self), (self.alert,)


@dataclass(slots=True)
class _Watch:
    """State of one limit: maximum of the metric, first violating step, and number of consecutive violations."""

    highest: float = -math.inf
    since: int = 0
    steps: int = 0


class MetricMonitor:
    """Checks metrics step by step and reports limits violated for their number of steps."""

    def __init__(self, limits: Sequence[MetricLimit]) -> None:
        self._limits = tuple(limits)
        self._watches = [_Watch() for _ in self._limits]
        self.fatal: Alert | None = None
        """Alert that pauses or stops the run, if any."""

    def check(self, step: int, metrics: Mapping[str, float]) -> list[Alert]:
        """Return alerts that trigger at this step; absent metrics change nothing."""
        alerts = []
        for limit, watch in zip(self._limits, self._watches, strict=True):
            value = metrics.get(limit.sign)
            if value is not None and _observe(watch, limit, step, value):
                alerts.append(Alert(limit, value, watch.since, step))
        fatal = sorted((alert for alert in alerts if alert.limit.then != "warn"), key=lambda alert: alert.limit.then == "pause")
        self.fatal = fatal[0] if fatal else None
        return alerts

    def acknowledge(self) -> None:
        """Reset the counts after a pause."""
        for watch in self._watches:
            watch.since = watch.steps = 0

    def state_dict(self) -> dict[str, Any]:
        """JSON-serializable state."""
        return {
            _key(limit): [None if watch.highest == -math.inf else watch.highest, watch.since, watch.steps]
            for limit, watch in zip(self._limits, self._watches, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint; limits not in it start anew."""
        for limit, watch in zip(self._limits, self._watches, strict=True):
            if _key(limit) in state:
                highest, watch.since, watch.steps = state[_key(limit)]
                watch.highest = -math.inf if highest is None else highest


def _observe(watch: _Watch, limit: MetricLimit, step: int, value: float) -> bool:
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
    bounds = {"not be below": limit.below, "not be above": limit.above, "not fall below its highest by more than": limit.falls}
    bounded = [f"{words} {bound:.4g}" for words, bound in bounds.items() if bound is not None]
    return f"may {' and '.join(bounded)}" if bounded else "must be a finite number"


def _key(limit: MetricLimit) -> str:
    return limit.model_dump_json()


FOLDER = "trackers"


@contextmanager
def tracked(trackers: Sequence[Tracker], output: Path) -> Iterator[None]:
    """Within the block, let trackers write offline to the folders `trackers/POLICY/TRACKER` of the home.

    Sets the trackers' environment variables unless they are set already, so that no data leaves the machine by default.
    """
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
    """Yield a function that logs the metrics of a step to the trackers of policy `output`."""
    with tracked(trackers, output):
        opened = [_opened(tracker, output.name) for tracker in trackers]

        def track(step: int, metrics: Mapping[str, float]) -> None:
            for tracker in opened:
                tracker.log({f"train/{name}": value for name, value in metrics.items()}, step=step)

        try:
            yield track
        finally:
            for tracker in opened:
                tracker.finish()


def _opened(tracker: Tracker, name: str) -> Any:
    from accelerate.state import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # accelerate's trackers need it to find the main process
    kind = LOGGER_TYPE_TO_CLASS[tracker]
    opened: Any = kind(name, os.environ["TENSORBOARD_LOGGING_DIR"]) if kind.requires_logging_directory else kind(name)
    opened.start()
    return opened


def _offline(tracker: Tracker, folder: Path) -> Mapping[str, str]:
    match tracker:
        case "trackio":
            return {"TRACKIO_DIR": str(folder)}
        case "wandb":
            return {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
        case "tensorboard":
            return {"TENSORBOARD_LOGGING_DIR": str(folder)}
        case "mlflow":
            return {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}


def finite_metrics(logs: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers in `logs`, without TRL's `num_tokens`, which is wrong for packed rows."""
    numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float) and name != "num_tokens"}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
