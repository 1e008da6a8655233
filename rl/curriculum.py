"""The curriculum: horizon, admission and sampling of tasks.

    horizon     maximum turns per trajectory, by step (ScalingInter) or by success and truncation rates (`gate`)
    admission   maximum depth by step, environments from a step on, difficulty pools with a share
    sampling    depths equally likely, environments and pools by share, frontier tasks preferred

Everything but the evidence is a pure function of step (from 1) and seed, so a resumed run trains on the same tasks. (ScalingInter-RL's own
scheduler keeps a counter and skips a stage on resume.) The evidence is in `Curriculum.state_dict` and stored in checkpoints.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from statistics import fmean
from typing import Any

from pydantic import Field, NonNegativeFloat, PositiveInt

from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.records import Outcome, StopReason, Task, Trajectory
from warehouse.settings import Section


class Pool(StrEnum):
    """Difficulty class by measured success rate: unmeasured, 0, strictly between 0 and 1, or 1."""

    UNKNOWN = "unknown"
    UNSOLVED = "unsolved"
    FRONTIER = "frontier"
    MASTERED = "mastered"


_Stratum = tuple[str, int, Pool | None]
"""Environment, depth (hops) and pool."""


class GateConfig(Section):
    """When to lengthen the horizon: success or truncation rate over recent steps at the current horizon."""

    steps: PositiveInt = 5
    """Number of recent steps over which rates are measured."""
    success: float = Field(default=0.7, gt=0, le=1)
    """Success rate at or above which the horizon grows."""
    truncated: float = Field(default=0.5, gt=0, le=1)
    """Fraction of trajectories truncated by the horizon at or above which it grows."""


class CurriculumConfig(Section):
    """Schedules of the horizon (ScalingInter-RL, arXiv 2509.08755) and of task depth, and task sampling."""

    rounds: tuple[PositiveInt, ...] = Field(default=(3, 5, 7), min_length=1)
    """Maximum turns per trajectory in each stage."""
    every: PositiveInt = 40
    """Steps per stage of the horizon; unused with a `gate`."""
    gate: GateConfig | None = None
    """Lengthen the horizon by measured success and truncation instead of every `every` steps."""
    hops: tuple[PositiveInt, ...] = Field(default=(2, 3, 4), min_length=1)
    """Maximum hops of a task in each stage of the depth."""
    hops_every: PositiveInt = 40
    """Steps per stage of the depth."""
    mixture: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Sampling share by environment; environments not named are excluded. Empty: ignore environments."""
    enters: dict[str, PositiveInt] = Field(default_factory=dict)
    """First step at which an environment's tasks are sampled, by environment."""
    pools: dict[Pool, NonNegativeFloat] = Field(default_factory=dict)
    """Sampling share by difficulty pool (`unknown`, `unsolved`, `frontier`, `mastered`) within each depth. Empty: ignore pools."""
    frontier: float = Field(default=0.9, ge=0, le=1)
    """How strongly sampling prefers tasks with a success rate near one half, from 0 (ignore success rates) to 1."""
    measure: bool = False
    """Update success rates from this run's trajectories."""


def value_at(step: int, rounds: Sequence[int], every: int) -> int:
    """`rounds[min((step - 1) // every, len(rounds) - 1)]` for `step` from 1."""
    if step < 1:
        raise ValueError(f"steps count from 1, got {step}")
    return rounds[min((step - 1) // every, len(rounds) - 1)]


def max_hops(step: int, config: CurriculumConfig) -> int:
    return value_at(step, config.hops, config.hops_every)


def pool_of(pass_rate: float | None) -> Pool:
    """Difficulty pool of a success rate; None means unmeasured."""
    if pass_rate is None:
        return Pool.UNKNOWN
    return Pool.UNSOLVED if pass_rate <= 0 else Pool.MASTERED if pass_rate >= 1 else Pool.FRONTIER


def frontier_weight(pass_rate: float | None, frontier: float) -> float:
    """Sampling weight of a task in [1 - `frontier`, 1]: 1 at a success rate of one half or if unknown.

    Linear in p (1 - p), the variance of a 0/1 reward; without variance a group has no gradient.
    """
    spread = 1.0 if pass_rate is None else 4 * pass_rate * (1 - pass_rate)
    return 1 - frontier + frontier * spread


def admitted(tasks: Sequence[Task], step: int, config: CurriculumConfig, pass_rates: Mapping[str, float]) -> list[Task]:
    """Tasks that may be sampled at `step`, sorted by key; all difficulty pools if those with a share are empty.

    Raises:
        RequestError: depth and environments admit no task.
    """
    limit = max_hops(step, config)
    shallow = sorted((task for task in tasks if task.hops <= limit), key=lambda task: task.key)
    if not shallow:
        raise RequestError(f"no task to train on at step {step}: rl.horizon.hops allows {limit} hops, but all tasks have more.")
    there = [task for task in shallow if config.enters.get(task.environment, 1) <= step and _share(task.environment, config.mixture) > 0]
    if not there:
        raise RequestError(f"no task to train on at step {step}: rl.horizon.mixture and rl.horizon.enters select no environment.")
    return [task for task in there if _share(pool_of(pass_rates.get(task.key)), config.pools) > 0] or there


def check_tasks(tasks: Sequence[Task], config: CurriculumConfig) -> None:
    """Check that the curriculum can sample from these tasks.

    Raises:
        RequestError: the mixture names an environment without tasks or whose tasks are all too deep, or step 1 admits no task.
    """
    depths: dict[str, int] = {}
    for task in tasks:
        depths[task.environment] = min(task.hops, depths.get(task.environment, task.hops))
    for name in (name for name, share in config.mixture.items() if share):
        if name not in depths:
            raise RequestError(
                f"rl.horizon.mixture names the environment {name!r}, but no training task uses it (found: "
                f"{', '.join(sorted(depths)) or 'none'}): import tasks for it or remove it."
            )
        if depths[name] > max(config.hops):
            raise RequestError(
                f"rl.horizon.mixture names the environment {name!r}, whose tasks have {depths[name]} hops or more, but rl.horizon.hops "
                f"allows at most {max(config.hops)}: raise it or remove the environment."
            )
    admitted(tasks, 1, config, {})


def sample_tasks(
    tasks: Sequence[Task],
    step: int,
    seed: int,
    count: int,
    config: CurriculumConfig,
    pass_rates: Mapping[str, float] | None = None,
    without: Collection[str] = (),
) -> list[Task]:
    """Sample the tasks of `step`: `count` distinct ones, or all admitted ones if there are fewer.

    Depths are equally likely, tasks are weighted by `frontier_weight`, environments and pools get their shares. The order of `tasks` has no
    effect.

    Args:
        pass_rates: success rate by task key; missing tasks are unknown.
        without: keys of tasks already sampled in this step.
    """
    rates = pass_rates or {}
    left = [task for task in admitted(tasks, step, config, rates) if task.key not in without]
    seeds = ("tasks", seed, step, *sorted(without))
    return _choose(left, _weights(left, config, rates), count, random.Random(seed_from(*seeds)))


def _weights(tasks: Sequence[Task], config: CurriculumConfig, pass_rates: Mapping[str, float]) -> list[float]:
    """Sampling weight of each task: by depth and frontier, scaled to the share of its environment and pool."""
    strata = [(_environment(task, config), task.hops, _pool(task, config, pass_rates)) for task in tasks]
    sizes = Counter(strata)
    near = [frontier_weight(pass_rates.get(task.key), config.frontier) for task in tasks]
    drawn = [weight / sizes[stratum] for weight, stratum in zip(near, strata, strict=True)]
    shares = _shares(sizes, config)
    named = [stratum if stratum in shares else (stratum[0], 0, None) for stratum in strata]
    totals: dict[_Stratum, float] = defaultdict(float)
    for name, weight in zip(named, drawn, strict=True):
        totals[name] += weight
    members = Counter(named)
    parts = (weight / totals[name] if totals[name] else 1 / members[name] for name, weight in zip(named, drawn, strict=True))
    return [part * shares[name] for part, name in zip(parts, named, strict=True)]


def _shares(strata: Collection[_Stratum], config: CurriculumConfig) -> dict[_Stratum, float]:
    """Share of each environment, or of each (environment, depth, pool) if pools have shares."""
    if not config.pools:
        return {(environment, 0, None): _share(environment, config.mixture) for environment, _, _ in strata}
    depths = Counter(environment for environment, _ in {(environment, depth) for environment, depth, _ in strata})
    there: dict[tuple[str, int], float] = defaultdict(float)
    for environment, depth, pool in strata:
        there[environment, depth] += _share(pool, config.pools)
    return {
        (environment, depth, pool): _share(environment, config.mixture)
        * _share(pool, config.pools)
        / there[environment, depth]
        / depths[environment]
        for environment, depth, pool in strata
    }


def _environment(task: Task, config: CurriculumConfig) -> str:
    return task.environment if config.mixture else ""


def _pool(task: Task, config: CurriculumConfig, pass_rates: Mapping[str, float]) -> Pool | None:
    pool = pool_of(pass_rates.get(task.key))
    return pool if config.pools.get(pool) else None


def _share(name: Any, shares: Mapping[Any, float]) -> float:
    return shares.get(name, 0.0) if shares and name is not None else 1.0


def _choose(tasks: Sequence[Task], weights: Sequence[float], count: int, generator: random.Random) -> list[Task]:
    """Weighted sampling without replacement: the smallest values of -log(u) / weight (Efraimidis and Spirakis, 2006)."""
    # Tasks of weight 0 come last, in random order.
    keys = [(weight <= 0, generator.expovariate(1.0) / (weight if weight > 0 else 1)) for weight in weights]
    return [tasks[index] for index in heapq.nsmallest(count, range(len(tasks)), key=keys.__getitem__)]


class Curriculum:
    """The curriculum of one run, with its evidence so far."""

    def __init__(self, config: CurriculumConfig, tasks: Sequence[Task], seed: int, pass_rates: Mapping[str, float] | None = None) -> None:
        """`pass_rates` are success rates from earlier runs, by task key."""
        self._config = config
        self._tasks = tasks
        self._seed = seed
        self._before = dict(pass_rates or {})
        self._stage = 0
        self._window: list[list[int]] = []
        self._tallies: dict[str, list[int]] = {}
        self._last: dict[str, float] = {}

    def horizon(self, step: int) -> int:
        """Maximum turns at `step`, which must follow the last observed step."""
        if self._config.gate is not None:
            return self._config.rounds[self._stage]
        return value_at(step, self._config.rounds, self._config.every)

    @property
    def pass_rates(self) -> dict[str, float]:
        """Success rate by task key: measured in this run if available, else from earlier runs."""
        return self._before | {key: successes / tries for key, (successes, tries) in self._tallies.items()}

    def draw(self, step: int, count: int, without: Collection[str] = ()) -> list[Task]:
        """Sample `count` tasks for `step`, excluding keys in `without`. Raises as `sample_tasks` does."""
        rates = self.pass_rates
        tasks = sample_tasks(self._tasks, step, self._seed, count, self._config, rates, without)
        self._last = {
            "horizon": float(self.horizon(step)),
            "hops": fmean(task.hops for task in tasks) if tasks else 0.0,
            "max_hops": float(max_hops(step, self._config)),
            "admitted": float(len(admitted(self._tasks, step, self._config, rates))),
        }
        return tasks

    def observe(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Update the evidence with the valid trajectories of `step`. Call once per step, in order."""
        valid = [trajectory for trajectory in trajectories if trajectory.outcome in (Outcome.SUCCESS, Outcome.FAILURE)]
        if self._config.measure:
            for trajectory in valid:
                tally = self._tallies.setdefault(trajectory.task_key, [0, 0])
                tally[0] += trajectory.outcome is Outcome.SUCCESS
                tally[1] += 1
        # In asynchronous runs some trajectories began under an earlier horizon; they are no evidence about the current one.
        present = [trajectory for trajectory in valid if trajectory.horizon == self._config.rounds[self._stage]]
        if self._config.gate is not None and present:
            successes = sum(trajectory.outcome is Outcome.SUCCESS for trajectory in present)
            truncated = sum(trajectory.stop_reason is StopReason.MAX_TURNS for trajectory in present)
            self._gate(self._config.gate, [successes, truncated, len(present)])

    def _gate(self, gate: GateConfig, counts: list[int]) -> None:
        self._window = [*self._window, counts][-gate.steps :]
        successes, truncated, tries = (sum(column) for column in zip(*self._window, strict=True))
        ripe = successes >= gate.success * tries or truncated >= gate.truncated * tries
        if len(self._window) == gate.steps and ripe and self._stage + 1 < len(self._config.rounds):
            self._stage, self._window = self._stage + 1, []

    def metrics(self) -> dict[str, float]:
        """Metrics of the last `draw`: horizon, mean and maximum depth, number of admitted tasks."""
        return dict(self._last)

    def state_dict(self) -> dict[str, Any]:
        """The evidence, JSON-serializable."""
        return {"stage": self._stage, "window": self._window, "tallies": self._tallies}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the evidence from a checkpoint. Raises KeyError if a key is missing."""
        self._stage = int(state["stage"])
        self._window = [list(counts) for counts in state["window"]]
        self._tallies = {key: list(tally) for key, tally in state["tallies"].items()}
