"""Environments whose calls change something: they are answered one after the other, also where a turn holds several."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping

from rl.environment import Step
from rl.environments.tool_use import ToolEnvironment
from rl.renderers.base import Action
from rl.tools import Tool


class StatefulEnvironment(ToolEnvironment):
    """Tools over a state of this trajectory's own; `_told` adds to each step what it came to."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        super().__init__(tools)
        self._lock = asyncio.Lock()

    async def step(self, action: Action) -> Step:
        """Call the tool, and say what it came to."""
        async with self._lock:
            return self._told(await super().step(action))

    @abstractmethod
    def _told(self, step: Step) -> Step:
        """A step with its reward, its figures, and whether the trajectory is over."""
