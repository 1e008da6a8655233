"""Asynchronous evaluation: every few RL steps, the policy in training attempts suite tasks on the engines that sample for it.

An evaluation begins when the engines have received a weight version, and no step waits for it: a thread requests its trajectories, a few at
a time, and grades and stores them as they end. Meanwhile the engines move to newer weights, so the metrics record the first and last
version that sampled any token, and the share of tokens from the evaluation's own version.

The trajectories have their own stage: nothing trains on them, and they do not count as evaluation of the finished policy.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from flows.context import RunContext, StageRun
from flows.evaluation_config import AsyncEvaluationConfig
from flows.inputs import bringing_tasks
from flows.stages.rollouts import store_stream
from rl.learner.batches import token_versions
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.rollout import TrajectoryStream
from warehouse import Failure, Metric, Outcome, Task, Trajectory
from warehouse.digests import seed_from
from warehouse.errors import RequestError

log = logging.getLogger("flywheel")

STAGE = "eval_beside"
PREFIX = "beside"
"""Prefix of the metrics: `beside/SUITE/METRIC`, at the step of the version."""


class AsyncEvaluation:
    """Evaluations alongside a training run. The training thread calls all methods."""

    def __init__(self, context: RunContext, run: StageRun, policy: str, config: AsyncEvaluationConfig) -> None:
        """Draw the tasks. Raise RequestError if a suite has no tasks in the lake, or a task names an unknown verifier."""
        self._context, self._run, self._policy, self._config = context, run, policy, config
        self._tasks = {suite: draw(context, suite, config.tasks) for suite in config.suites}
        self._verifiers = context.verifiers(tasks=[task for tasks in self._tasks.values() for task in tasks])
        self._thread = ThreadPoolExecutor(1, "evaluation")
        self._closing = threading.Event()
        self._version = 0
        self._work: Future[None] | None = None
        self._stream: TrajectoryStream | None = None
        self._resumed: int | None = None
        for suite in (suite for suite in config.suites if suite in context.config.evaluation.suites):
            log.warning("%s is evaluated during training and reported: never select checkpoints or hyperparameters on it", suite)

    @property
    def under_way(self) -> int | None:
        """The version under evaluation; None if there is none."""
        return self._version if self._work is not None and not self._work.done() else None

    def begin(self, version: int) -> None:
        """Resume an interrupted evaluation and begin a due one. The engines have the weights of step `version`."""
        self._go_on()
        self._begin_due(version)

    def finish(self, version: int) -> None:
        """Training ended with `version`: wait for the running evaluation, and for the last one if due."""
        self._go_on()
        self._wait()
        self._begin_due(version)
        self._wait()
        self._context.lake.add(self._context.running.drain_retries())

    def leave_out(self, reason: str) -> None:
        """Record that the running evaluation is left unfinished."""
        if self.under_way is not None:
            self._record("left_out", self._version, f"the evaluation of version {self._version} did not finish: {reason}")

    def close(self) -> None:
        """Stop the running evaluation; its finished trajectories are kept."""
        self._closing.set()
        if self._stream is not None:
            self._stream.cancel()
        self._thread.shutdown()

    def state_dict(self) -> dict[str, Any]:
        return {"under_way": self.under_way if self._resumed is None else self._resumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Schedule the checkpoint's unfinished evaluation to resume once the engines have weights."""
        self._resumed = state["under_way"]

    def _go_on(self) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._begin(resumed)

    def _begin_due(self, version: int) -> None:
        if version and version % self._config.every == 0:
            self._begin(version)

    def _begin(self, version: int) -> None:
        if self._is_done(version):
            return
        if (busy := self.under_way) is not None:
            late = f"version {version} is not evaluated: the evaluation of version {busy} is still running; raise rl.evaluate.every or "
            self._record("left_out", version, f"{late}.at_once, or lower .tasks")
            return
        self._wait()
        self._version, self._work = version, self._thread.submit(self._evaluate, version)

    def _wait(self) -> None:
        if self._work is not None:
            self._work.result()

    def _is_done(self, version: int) -> bool:
        run = self._run.run
        keys = [(run.id, run.stage, f"{PREFIX}/{suite}/tasks", version) for suite in self._tasks]
        return len(self._context.lake.existing(Metric, keys)) == len(keys)

    def _evaluate(self, version: int) -> None:
        """Run the missing part of an evaluation and store its metrics. A fault is recorded instead of raised."""
        began = time.monotonic()
        requests = {request.trajectory_id: request for request in self._requests(version)}
        try:
            self._roll_out(requests)
        except Exception as error:  # training continues in any case
            first = _first(error)
            self._record("fault", version, f"the evaluation of version {version} failed: {type(first).__name__}: {str(first)[:500]}")
            return
        if not self._closing.is_set():
            self._conclude(version, list(requests), time.monotonic() - began)

    def _requests(self, version: int) -> Iterator[RolloutRequest]:
        """Requests of an evaluation: greedy like the suite's own evaluation, with the same seed per task for every version."""
        config, run = self._context.config, self._run.run
        for suite, tasks in self._tasks.items():
            for task in tasks:
                yield RolloutRequest(
                    trajectory_id=f"{run.id}-{PREFIX}-{version:05d}-{task.key}",
                    task=task,
                    policy=self._policy,
                    horizon=config.evaluation.horizon,
                    seed=seed_from(config.seed, PREFIX, task.key),
                    temperature=0.0,
                    stage=STAGE,
                    wheel_turn=run.wheel_turn,
                    step=version,
                    suite=suite,
                )

    def _roll_out(self, requests: Mapping[str, RolloutRequest]) -> None:
        stored = self._context.lake.existing(Trajectory, list(requests))
        missing = [request for key, request in requests.items() if key not in stored]
        first, later = missing[: self._config.at_once], deque(missing[self._config.at_once :])
        rollouts = self._context.running
        self._stream = stream = rollouts.submit(first)
        if self._closing.is_set():  # closed before there was a stream to cancel
            stream.cancel()

        def ended(done: int) -> None:
            if later and not self._closing.is_set():
                rollouts.extend(stream, [later.popleft()])

        store_stream(self._context.lake, stream, missing, self._verifiers, ended)

    def _conclude(self, version: int, ids: Sequence[str], seconds: float) -> None:
        run, found = self._run.run, self._context.lake.trajectories("list_contains(?, id)", [ids])
        by_suite = {suite: metrics_of([each for each in found if each.suite == suite], version) for suite in self._tasks}
        self._context.lake.add(
            Metric(run.id, run.stage, run.wheel_turn, version, f"{PREFIX}/{suite}/{name}", value)
            for suite, metrics in by_suite.items()
            for name, value in {**metrics, "seconds": seconds}.items()
        )
        for suite, metrics in by_suite.items():
            log.info("%s  version %d on %s: success %s", run.id, version, suite, _words(metrics))

    def _record(self, kind: str, version: int, reason: str) -> None:
        log.warning("%s: %s", self._run.id, reason)
        item = {"run": self._run.id, "version": version, "suites": list(self._config.suites)}
        self._context.lake.add([Failure(STAGE, kind, reason, item)])


def draw(context: RunContext, suite: str, count: int | None) -> list[Task]:
    """Draw `count` tasks of a suite (None: all) by the home's seed, ordered by key. Raise RequestError if there are none."""
    tasks = sorted(context.lake.tasks(split=suite), key=lambda task: task.key)
    if not tasks:
        home = context.home.root
        raise RequestError(f"rl.evaluate: {home} has no tasks of the suite {suite}; choose another, or {bringing_tasks(home, suite)}.")
    chosen = random.Random(seed_from(context.config.seed, PREFIX, suite))
    return tasks if count is None or count >= len(tasks) else sorted(chosen.sample(tasks, count), key=lambda task: task.key)


def metrics_of(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Compute the metrics of an evaluation that began with `version`.

    `success` is `successes` / `valid`; invalid trajectories do not count. `first_version` and `last_version` are the extreme versions that
    sampled any token, `own_tokens` the share of tokens sampled by `version`.
    """
    counts = {outcome: sum(each.outcome is outcome for each in trajectories) for outcome in Outcome}
    valid = counts[Outcome.SUCCESS] + counts[Outcome.FAILURE]
    invalid, successes = counts[Outcome.INVALID], counts[Outcome.SUCCESS]
    metrics: dict[str, float] = {"tasks": len(trajectories), "valid": valid, "invalid": invalid, "successes": successes}
    if valid:
        metrics["success"] = successes / valid
    versions = [each for trajectory in trajectories for turn in trajectory.turns for each in token_versions(turn)]
    if versions:
        span = {"first_version": min(versions), "last_version": max(versions)}
        metrics |= {**span, "own_tokens": versions.count(version) / len(versions)}
    return {name: float(value) for name, value in metrics.items()}


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _words(metrics: Mapping[str, float]) -> str:
    success = f"{metrics['success']:.3f}" if "success" in metrics else "unknown"
    span = f", sampled by versions {metrics['first_version']:.0f} to {metrics['last_version']:.0f}" if "first_version" in metrics else ""
    return f"{success} of {metrics['valid']:.0f}, {metrics['invalid']:.0f} invalid{span}"
