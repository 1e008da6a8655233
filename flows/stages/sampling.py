"""Sampling: trajectories of one policy on chosen tasks, for whoever wants to look at them, score them or learn from them elsewhere.

They are stored as they end, under the stage `rollout`, which takes no part in training or in evaluation. A trajectory's id follows from
the run, the task and the sample, so sampling that was interrupted does only what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb

from flows.runs import StageRun
from flows.stages.evaluation import roll_out
from flows.workshop import Workshop
from rl.rollouts.rollout import RolloutRequest
from warehouse import Policy, Task, Trajectory
from warehouse.digests import seed_from
from warehouse.errors import RequestError


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
    speed = roll_out(shop, shop.rollouts(shop.folder(policy)), missing, run) if missing else {}
    return {**_figures(shop, run), **speed}


def _tasks(shop: Workshop, wanted: Wanted) -> list[Task]:
    try:
        tasks = shop.lake.read(Task, wanted.condition)
    except duckdb.Error as error:
        raise RequestError(f"--tasks is no condition on the table tasks: {str(error).splitlines()[0]}") from error
    if not tasks:
        raise RequestError(f"{shop.home.root} has no task with {wanted.condition}.")
    return tasks


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
