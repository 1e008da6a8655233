"""The RL loop: what happens in a step, in order.

    publish      give the engines the weights of the previous step and verify that they use them
    collect      choose horizon and tasks, roll out, grade, filter    rl/curriculum.py, rl/rollouts/collect.py, asynchronous.py
    advantages   compare each action with its group or with a critic                rl/advantages.py, rl/learner/batches.py
    update       take optimizer steps with TRL's loss over the rows                 rl/learner
    record       write metrics to the lake and the trackers, check them against limits
    save         write a checkpoint with everything that a resumed run needs

Synchronous, one-step-off and asynchronous runs differ only in `Sampler.collect`; single and multiple workers only in `Learner`. A resumed
run publishes the weights of its last checkpoint and repeats the next step, using the step's trajectories that are already stored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rl.advantages import ESTIMATORS
from rl.engines.base import WeightProbe
from rl.engines.weight_sync import WeightSyncHandle
from rl.learner.base import EngineWeights, Learner, Stateful, TrainResult
from rl.learner.batches import (
    Row,
    check_images,
    correct,
    estimate,
    mean_difference,
    row_of,
    rows_of,
    with_observations,
    without_placeholders,
)
from rl.learner.config import MetricLimit, ReinforceConfig
from rl.learner.metrics import (
    Alert,
    MetricMonitor,
    StepTimes,
    TrainingHalted,
    crossed,
    describe,
    finite_metrics,
    prompt_information,
    sampler_errors,
    speed_metrics,
    staleness_metrics,
    tracking,
)
from rl.ray_runtime import RayConfig
from rl.rollouts.collect import Collected, Filter, RejectedSample
from warehouse.records import Trajectory


class Sampler(Protocol):
    """Engines and environments of a run."""

    def collect(self, step: int) -> Collected:
        """Collect the rewarded trajectories of `step` (from 1), and those excluded from training."""

    def load(self, folder: Path | None, version: int) -> None:
        """Sample with weights `version` from now on, read from `folder`, or already sent by the learner if None."""

    def probe(self) -> Sequence[WeightProbe]:
        """Let each engine sample with the weights just loaded; empty if there is nothing to check."""


class StepRecorder(Protocol):
    """Where a run reports its metrics."""

    def metrics(self, step: int, metrics: dict[str, float]) -> bool | None:
        """Record the metrics of a step; training ends if this returns True."""

    def alert(self, alert: Alert) -> None:
        """Record a metric beyond its limit, warnings included."""

    def drops(self, step: int, drops: Sequence[RejectedSample]) -> None:
        """Record trajectories that the off-policy correction rejected."""


def train(
    policy: Path,
    output: Path,
    config: ReinforceConfig,
    seed: int,
    sampler: Sampler,
    recorder: StepRecorder,
    state: Mapping[str, Stateful] | None = None,
    engines: EngineWeights | None = None,
    weight_sync: WeightSyncHandle | None = None,
    ray: RayConfig | None = None,
) -> TrainResult:
    """Train the policy in folder `policy` and write the result to `output`; the same call resumes an interrupted run.

    Args:
        state: further objects to save in checkpoints, by name.
        weight_sync: sends weights to engines; None: engines load folders.
        ray: how to connect to Ray if the learner has workers and Ray is not running yet.

    Raises:
        TrainingHalted: a metric paused or stopped training, or an engine's weights differ from the learner's.
    """
    started = time.monotonic()
    with open_learner(policy, output, config, seed, engines or EngineWeights(), weight_sync, ray) as learner:
        with tracking(config.trackers, output) as track:
            everything = {"monitor": MetricMonitor(config.health.limits), **(state or {})}
            loop = ReinforceLoop(learner, sampler, recorder, config, everything, track)
            steps = loop.run()
        learner.write(output)
    return TrainResult(output, {"steps": steps, "seconds": time.monotonic() - started, **loop.last})


class ReinforceLoop:
    """The steps of one run."""

    def __init__(
        self, learner: Learner, sampler: Sampler, recorder: StepRecorder, config: ReinforceConfig, state: dict[str, Any], track: Any
    ) -> None:
        """`state` holds the metric `monitor` and other state to checkpoint; `track` takes step and metrics."""
        self.learner, self.sampler, self.recorder, self.config = learner, sampler, recorder, config
        self.state, self.track = state, track
        self.monitor: MetricMonitor = state["monitor"]
        self.saved, self.saved_at = 0, time.monotonic()
        self.last: dict[str, float] = {}

    def run(self) -> int:
        """Run the remaining steps and return the number of the last one."""
        step, stop = self.resume(), False
        while step < self.config.steps and not stop:
            step += 1
            began = time.monotonic()
            checked = self.publish(step - 1, record=0 < step - 1 == self.saved)
            published = time.monotonic()
            collected = self.sampler.collect(step)
            times = StepTimes(published - began, time.monotonic() - published, 0.0, *collected.waited)
            rows, collected, metrics = self.advantages(step, collected)
            update = self.learner.update(rows, step)
            metrics |= {**checked.metrics, **update.metrics, **errors(checked.differences, update.differences)}
            times, tokens = replace(times, whole=time.monotonic() - began), replace(update.tokens, sampled=sampled(collected))
            metrics |= speed_metrics(times, tokens, update.flops, self.config.learner.workers, update.device)
            stop = self.record(step, metrics)
            if self.is_checkpoint(step):
                self.save(step)
        if self.monitor.fatal is not None:
            raise TrainingHalted(self.monitor.fatal)
        self.publish(step)
        return step

    # Publish

    def publish(self, version: int, record: bool = False) -> WeightCheck:
        """Give the engines the current weights and verify them; `record` as in `Learner.publish`.

        Raises:
            TrainingHalted: an engine's weights differ from the learner's.
        """
        self.sampler.load(self.learner.publish(version, record), version)
        probes = [probe for probe in self.sampler.probe() if probe.token_ids]
        if not probes:
            return WeightCheck()
        scored = self.learner.score([row_of(probe) for probe in probes]).logprobs
        means = list(map(mean_difference, probes, scored))
        difference = next((each for each in means if math.isnan(each)), max(means))
        bound = self.config.health.weight_difference
        if bound is not None and not difference <= bound:
            alert = Alert(MetricLimit(sign="weight_difference", above=bound, then="stop"), difference, version, version)
            self.recorder.alert(alert)
            raise TrainingHalted(alert)
        differences = [torch.tensor(ours) - torch.tensor(probe.logprobs) for probe, ours in zip(probes, scored, strict=True)]
        return WeightCheck({"weight_difference": difference}, torch.cat(differences))

    # Advantages

    def advantages(self, step: int, collected: Collected) -> tuple[list[Row], Collected, dict[str, float]]:
        """Compute advantages; return the rows to train on, what was collected, and the metrics so far."""
        config, learner = self.config, self.learner
        rows = self.readable(rows_of(collected.kept, None if config.has_critic else ESTIMATORS[config.estimator], collected.environments))
        metrics = {**describe(collected.trajectories), **staleness_metrics(rows, step - 1), **self.information(collected.trajectories)}
        if config.has_critic or config.correction.needed:
            logprobs, values = learner.score(rows)
            if config.has_critic:
                rows = estimate(rows, values, logprobs, config.estimator, config.critic)
            if config.correction.needed:
                corrected = correct(rows, logprobs, config.correction)
                rows, metrics["rejected_tokens"] = list(corrected.rows), corrected.rejected_tokens
                collected = self.without(step, collected, corrected.rejected)
        return rows, collected, {**metrics, **collected.metrics()}

    def readable(self, rows: Sequence[Row]) -> list[Row]:
        """Mask image placeholders, and unmask observations if configured. Raises RequestError as `check_images` does."""
        encoding, masked = self.learner.encoding, self.config.mask_observations
        check_images(rows, encoding.placeholder_id is not None, masked)
        if encoding.placeholder_id is not None:
            rows = [without_placeholders(row, encoding.placeholder_id, encoding.pad_id) for row in rows]
        if not masked:
            rows = [with_observations(row, logprobs) for row, logprobs in zip(rows, self.learner.score(rows).logprobs, strict=True)]
        return list(rows)

    def information(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Mutual information of prompts and first actions; empty with fewer than two tasks."""
        rows = crossed(trajectories, self.config.health.information_tasks)
        if not rows:
            return {}
        scores = torch.tensor([sum(logprobs) for logprobs in self.learner.score(rows).logprobs])
        return {"prompt_information": prompt_information(scores.reshape(math.isqrt(len(rows)), -1))}

    def without(self, step: int, collected: Collected, rejected: Sequence[Row]) -> Collected:
        """Add rows that the off-policy correction rejected as a whole to the drops of `collected`, and record them."""
        reason = f"importance ratios outside {self.config.correction.reject_below:g} to {self.config.correction.reject_above:g}"
        drops = [RejectedSample(row.trajectory_id, row.task_key, Filter.OFF_POLICY, reason) for row in rejected]
        self.recorder.drops(step, drops)
        return replace(collected, drops=(*collected.drops, *drops))

    # Record

    def record(self, step: int, metrics: dict[str, float]) -> bool:
        """Check metrics against their limits and report them; return whether training ends."""
        for alert in self.monitor.check(step, metrics):
            self.recorder.alert(alert)
        self.last = finite_metrics(metrics)
        self.track(step, self.last)
        return bool(self.recorder.metrics(step, dict(self.last))) or self.monitor.fatal is not None

    # Checkpoints

    def is_checkpoint(self, step: int) -> bool:
        """Whether a checkpoint is due: by steps, by minutes, at the end, and before a pause, but not before a stop."""
        config, fatal = self.config, self.monitor.fatal
        if fatal is not None:
            return fatal.limit.then == "pause"
        late = config.save_minutes is not None and time.monotonic() - self.saved_at >= 60 * config.save_minutes
        return step % config.save_every == 0 or step == config.steps or late

    def save(self, step: int) -> None:
        if self.monitor.fatal is not None:
            self.monitor.acknowledge()
        self.learner.save(step, {name: part.state_dict() for name, part in self.state.items()})
        self.saved, self.saved_at = step, time.monotonic()

    def resume(self) -> int:
        """Restore the last checkpoint and return its step; 0 without one."""
        found = self.learner.load()
        if found is not None:
            self.saved, states = found
            for name, part in self.state.items():
                part.load_state_dict(states[name])
        return self.saved


@dataclass(frozen=True, slots=True)
class WeightCheck:
    """Metrics of the weight probe, and log π_learner - log π_engine of its tokens, shape (tokens,)."""

    metrics: dict[str, float] = field(default_factory=dict)
    differences: Tensor = field(default_factory=lambda: torch.zeros(0))


def errors(*differences: Tensor) -> dict[str, float]:
    """Log-probability errors between engines and learner with the same weights; empty without tokens."""
    tokens = torch.cat(differences)
    return sampler_errors(tokens) if len(tokens) else {}


def sampled(collected: Collected) -> int:
    """Tokens sampled for a step, invalid trajectories included."""
    return sum(len(turn.action_ids) for trajectory in collected.trajectories for turn in trajectory.turns)


@contextmanager
def open_learner(
    policy: Path,
    output: Path,
    config: ReinforceConfig,
    seed: int,
    engines: EngineWeights,
    weight_sync: WeightSyncHandle | None,
    ray: RayConfig | None,
) -> Iterator[Learner]:
    """Open the configured learner, in this process or as Ray actors; close it on exit."""
    if config.learner.on_ray:
        from rl.learner.group import LearnerGroup  # imports Ray, which a single process does not need

        with closing(LearnerGroup(policy, output, config, seed, engines, weight_sync, ray)) as group:
            yield group
    else:
        from rl.learner.local import load_learner

        with closing(load_learner(policy, output, config, seed, engines, weight_sync)) as learner:
            yield learner
