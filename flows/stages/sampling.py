"""Sampling: trajectories of one policy on chosen tasks, for whoever wants to look at them, score them or learn from them elsewhere.

They are stored as they end, under the stage `rollout`, which takes no part in training or in evaluation. A trajectory's id follows from
the run, the task and the sample, so sampling that was interrupted does only what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from flows.runs import StageRun
from flows.stages.evaluation import score
from flows.workshop import Workshop
from rl.engines.figures import PoolFigures
from rl.rollouts.rollout import RolloutRequest, Rollouts
from warehouse import Policy, Task, Trajectory
from warehouse.digests import seed_from
from warehouse.errors import RequestError

COMMIT_SECONDS = 3.0
"""How long an ended trajectory may wait before it is in the lake: one commit for many."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be sampled: a SQL condition on `tasks`, trajectories a task, and how they are sampled."""

    condition: str
    samples: int
    temperature: float
    horizon: int


def sample(shop: Workshop, policy: Policy, wanted: Wanted, run: StageRun) -> dict[str, Any]:
    """Sample what is wanted and not stored yet; returns the figures of all of it.

    Raises:
        RequestError: no task meets the condition, or it is no SQL.
    """
    requests = [_request(shop, policy, wanted, run, task, number) for task in _tasks(shop, wanted) for number in range(wanted.samples)]
    stored = shop.lake.existing(Trajectory, [request.trajectory_id for request in requests])
    missing = [request for request in requests if request.trajectory_id not in stored]
    speed = _sample(shop, shop.rollouts(shop.folder(policy)), missing, run) if missing else {}
    return {**_figures(shop, run), **speed}


def _tasks(shop: Workshop, wanted: Wanted) -> list[Task]:
    try:
        tasks = shop.lake.read(Task, wanted.condition)
    except duckdb.Error as error:
        raise RequestError(f"--tasks is no condition on the table tasks: {str(error).splitlines()[0]}") from error
    if not tasks:
        raise RequestError(f"{shop.home.root} has no task with {wanted.condition}.")
    return tasks


def _sample(shop: Workshop, rollouts: Rollouts, requests: Sequence[RolloutRequest], run: StageRun) -> dict[str, float]:
    """Run the requests and store what comes of them; the engines' figures of this time alone."""
    run.total_steps = len(requests)
    tasks = {request.trajectory_id: request.task for request in requests}
    before, waiting, committed = rollouts.figures(), list[Trajectory](), time.monotonic()
    stream = rollouts.submit(requests)
    try:
        for done, trajectory in enumerate(stream, 1):
            waiting.append(trajectory)
            if done == len(requests) or time.monotonic() - committed > COMMIT_SECONDS:
                _store(shop, tasks, waiting)
                run.metric(done, {**rollouts.figures().metrics(before), **_speed(rollouts.figures(), before)})
                waiting, committed = [], time.monotonic()
    finally:
        stream.cancel()
    return _speed(rollouts.figures(), before)


def _store(shop: Workshop, tasks: dict[str, Task], trajectories: Sequence[Trajectory]) -> None:
    judged, scores = score([tasks[trajectory.id] for trajectory in trajectories], trajectories, shop.config.evaluation.verifier)
    shop.lake.add([*judged, *scores])


def _speed(figures: PoolFigures, before: PoolFigures) -> dict[str, float]:
    return {
        "tokens_per_second": figures.tokens_per_second(before),
        "retaken": float(figures.retaken - before.retaken),
        "replacements": float(figures.replacements - before.replacements),
    }


def _figures(shop: Workshop, run: StageRun) -> dict[str, Any]:
    """What the trajectories of a run came to."""
    (row,) = shop.lake.query(
        """
        SELECT count(*) AS trajectories, count(*) FILTER (outcome = 'success') AS success, count(*) FILTER (outcome = 'failure') AS failure,
               count(*) FILTER (outcome = 'invalid') AS invalid, avg(n_turns) AS turns
        FROM trajectories WHERE stage = 'rollout' AND starts_with(id, ?)
        """,
        [f"{run.id}-"],
    ).to_pylist()
    return row


def _request(shop: Workshop, policy: Policy, wanted: Wanted, run: StageRun, task: Task, number: int) -> RolloutRequest:
    trajectory_id = f"{run.id}-{task.key}-{number}"
    return RolloutRequest(
        trajectory_id=trajectory_id,
        task=task,
        policy=policy.id,
        horizon=wanted.horizon,
        seed=seed_from(shop.config.seed, trajectory_id),
        temperature=wanted.temperature,
        stage="rollout",
        wheel_turn=policy.wheel_turn,
        sample=number,
    )
