"""An environment that fails as its task says, for the tests of faults."""

from __future__ import annotations

import asyncio
import os

from rl.dialect import Action
from rl.environment import Observation, Resources, Step
from warehouse.records import Task


class FaultyEnvironment:
    """Raises, hangs or kills its worker at `reset`, or does nothing wrong."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def reset(self, task: Task, seed: int) -> Observation:
        if task.question == "raise":
            raise ValueError("the world broke")
        if task.question == "hang":
            await asyncio.sleep(self._seconds)
        if task.question == "die":
            os._exit(1)
        return Observation("Look around.")

    async def step(self, action: Action) -> Step:
        return Step("Nothing happens.", reward=0.5)

    async def close(self) -> None:
        pass


def create(resources: Resources) -> FaultyEnvironment:
    return FaultyEnvironment(float(resources.options["seconds"]))
