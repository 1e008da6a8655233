"""Search whose answers come late, as tools' do: a median of 50 ms, and one call in fifty takes 2 s."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from itertools import count

from rl.envs.base import Observation, Resources, Step
from rl.envs.config import EnvironmentKindConfig
from rl.envs.search import SearchEnvironment, create
from rl.renderers.base import Action
from rl.rollouts.config import RolloutConfig
from warehouse import Task
from warehouse.digests import seed_from

LATE = "benchmarks.slow_search:create_slow"
"""The name of the environment."""
MEDIAN_SECONDS, SPREAD = 0.05, 0.5
"""Of the logarithmic normal distribution of the quick calls."""
SLOW_SECONDS, SLOW_SHARE = 2.0, 0.02


def latency(seed: int, call: int) -> float:
    """Seconds that a call takes; the same for the same trajectory and turn."""
    rng = random.Random(seed_from(seed, "latency", call))
    return SLOW_SECONDS if rng.random() < SLOW_SHARE else MEDIAN_SECONDS * math.exp(rng.gauss(0.0, SPREAD))


class SlowSearch:
    """The environment `search`, late."""

    def __init__(self, inner: SearchEnvironment) -> None:
        self._inner = inner
        self._seed = self._calls = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        self._seed = seed
        return await self._inner.reset(task, seed)

    async def step(self, action: Action) -> Step:
        if action.tool == "search":
            self._calls += 1
            await asyncio.sleep(latency(self._seed, self._calls))
        return await self._inner.step(action)

    async def close(self) -> None:
        await self._inner.close()


def create_slow(resources: Resources) -> SlowSearch:
    """The environment of one trajectory."""
    return SlowSearch(create(resources))


def with_late(rollout: RolloutConfig) -> RolloutConfig:
    """The configuration, with this environment among its own."""
    kinds = rollout.environments.kinds | {LATE: EnvironmentKindConfig()}
    return rollout.model_copy(update={"environments": rollout.environments.model_copy(update={"kinds": kinds})})


def waiting() -> Callable[[], None]:
    """What keeps its caller waiting as long as such calls take, one after the other."""
    calls = count(1)
    return lambda: time.sleep(latency(0, next(calls)))
