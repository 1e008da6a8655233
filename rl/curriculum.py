"""The curriculum: how long a trajectory may be, how deep its tasks are, and which tasks a step trains on.

Everything is a pure function of the step (counted from 1) and the seed. There is no counter to save, so a run that was stopped
and resumed trains on what it would have trained on. ScalingInter-RL's own scheduler keeps one and skips a stage on resume.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.records import Task


class CurriculumConfig(BaseModel):
    """Stages of the horizon (ScalingInter-RL, arXiv 2509.08755) and of the depth of tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: tuple[PositiveInt, ...] = Field(default=(3, 5, 7), min_length=1)
    """The most turns of a trajectory, stage by stage. One value is a fixed horizon."""
    every: PositiveInt = 40
    """Steps that a stage of the horizon lasts; the last one has no end."""
    hops: tuple[PositiveInt, ...] = Field(default=(2, 3, 4), min_length=1)
    """The most hops of a task, stage by stage."""
    hops_every: PositiveInt = 40
    """Steps that a stage of the depth lasts; the last one has no end."""
    frontier: float = Field(default=0.9, ge=0, le=1)
    """How much the choice of tasks follows what the policy sometimes solves and sometimes not; 0 ignores pass rates."""


def horizon(step: int, rounds: Sequence[int], every: int) -> int:
    """The value of the stage that `step` (from 1) is in: `rounds[min((step - 1) // every, len(rounds) - 1)]`."""
    if step < 1:
        raise ValueError(f"steps count from 1, got {step}")
    return rounds[min((step - 1) // every, len(rounds) - 1)]


def max_hops(step: int, config: CurriculumConfig) -> int:
    """The most hops that a task of `step` may have."""
    return horizon(step, config.hops, config.hops_every)


def frontier_weight(pass_rate: float | None, frontier: float) -> float:
    """Weight of a task in the choice, in [1 - `frontier`, 1]: 1 where it is solved half of the time, or nothing is known of it.

    It follows p (1 - p), the variance of a reward of 0 or 1, without which a group has no gradient.
    """
    spread = 1.0 if pass_rate is None else 4 * pass_rate * (1 - pass_rate)
    return 1 - frontier + frontier * spread


def sample_tasks(
    tasks: Sequence[Task],
    step: int,
    seed: int,
    count: int,
    config: CurriculumConfig,
    pass_rates: Mapping[str, float] | None = None,
) -> list[Task]:
    """The tasks that `step` trains on: `count` different ones, or all that are shallow enough where they are fewer.

    Every depth that the stage admits is as likely as the others, however many tasks it has; within it, tasks follow their
    `frontier_weight`. The choice does not depend on the order of `tasks`, only on the arguments' content.

    Args:
        tasks: of different keys.
        pass_rates: share of successes by task key, of an earlier policy; tasks that are not in it count as unknown.

    Raises:
        RequestError: where no task is shallow enough.
    """
    limit = max_hops(step, config)
    admitted = sorted((task for task in tasks if task.hops <= limit), key=lambda task: task.key)
    if not admitted:
        raise RequestError(f"There is no task to train on at step {step}: curriculum.hops admits {limit} hops, and all tasks have more.")
    depths = Counter(task.hops for task in admitted)
    weights = [frontier_weight((pass_rates or {}).get(task.key), config.frontier) / depths[task.hops] for task in admitted]
    return _choose(admitted, weights, count, random.Random(seed_from("tasks", seed, step)))


def _choose(tasks: Sequence[Task], weights: Sequence[float], count: int, generator: random.Random) -> list[Task]:
    """Weighted choice without replacement: the smallest of -log(u) / weight. Efraimidis and Spirakis, 2006."""
    keys = [generator.expovariate(1.0) / weight if weight > 0 else float("inf") for weight in weights]
    return [tasks[index] for index in heapq.nsmallest(count, range(len(tasks)), key=keys.__getitem__)]
