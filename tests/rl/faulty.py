"""An environment that fails as its task says, for the tests of faults."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from rl.envs.base import EnvironmentFault, Observation, Resources, Step
from rl.renderers.base import Action
from warehouse.records import Task

HALF = "half \ud800 a pair"
"""What no tokenizer takes and no table."""


class FaultyEnvironment:
    """Raises, hangs, blocks, spells no Unicode or kills its worker at `reset`, or does nothing wrong until an action says so.

    It kills its worker always (`die`), or where a file is not there yet (`die unless FILE`), which is then.
    """

    def __init__(self, seconds: float, dead: bool) -> None:
        """`dead`: it can never be made."""
        self._seconds, self._dead = seconds, dead
        self._held: list[bytearray] = []

    async def probe(self) -> None:
        if self._dead:
            raise EnvironmentFault("the world is not there")

    async def reset(self, task: Task, seed: int) -> Observation:
        if task.question == "raise":
            raise ValueError("the world broke")
        if task.question == "hang":
            await asyncio.sleep(self._seconds)
        if task.question == "block":
            time.sleep(self._seconds)
        if task.question == "die" or (task.question.startswith("die unless ") and is_first(task.question.removeprefix("die unless "))):
            os._exit(1)
        return Observation(HALF if task.question == "half" else "Look around.")

    async def step(self, action: Action) -> Step:
        if action.tool == "break":
            raise ValueError("the tool broke")
        if action.tool == "spell":
            return Step(HALF)
        if action.tool == "misspell":
            raise EnvironmentFault(HALF)
        if action.tool == "allocate":
            self._held.append(bytearray(int(float(action.arguments) * 1024**3)))
        return Step("Nothing happens.", reward=0.5)

    async def close(self) -> None:
        pass


def is_first(path: str) -> bool:
    """Whether the file was not there; it is now."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def create_deadly(resources: Resources) -> FaultyEnvironment:
    """Ends its process by the signal of `options.signal`, as soon as an environment is made."""
    print("the last words", flush=True)
    signal.raise_signal(signal.Signals[str(resources.options["signal"])])
    raise AssertionError("it should have ended")


def create(resources: Resources) -> FaultyEnvironment:
    options = resources.options
    return FaultyEnvironment(float(options.get("seconds", 0)), bool(options.get("dead", False)))
