"""An environment made of tools: an action calls one of them, an answer ends the trajectory.

It never says whether an answer is right: within a trajectory there is no feedback from the truth.
"""

from __future__ import annotations

from collections.abc import Mapping

from rl.dialect import Action, Schema
from rl.environment import Observation, Step, ToolOutcome
from rl.tools import Tool, ToolError, ToolMiss
from warehouse.records import Task

ANSWER = "answer"


class ToolEnvironment:
    """Tools by the names that actions call them by."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = tools

    async def reset(self, task: Task, seed: int) -> Observation:
        """Nothing to see beside the question; the tools are told to policies whose dialect shows them."""
        return Observation(tools=tuple(_schema(name, tool) for name, tool in self.tools.items()))

    async def step(self, action: Action) -> Step:
        """Call the tool; the observation is what it returns, or why it could not be called."""
        if action.tool == ANSWER:
            return Step(done=True)
        called = self.tools.get(action.tool)
        if called is None:
            return Step(f"Error: there is no tool {action.tool}, only {', '.join(self.tools)}", tool_outcome=ToolOutcome.ERROR)
        try:
            return Step(await called(action.arguments), tool_outcome=ToolOutcome.OK)
        except ToolMiss as miss:
            return Step(str(miss), tool_outcome=ToolOutcome.MISS)
        except ToolError as error:
            return Step(f"Error: {error}", tool_outcome=ToolOutcome.ERROR)

    async def close(self) -> None:
        """Nothing is held."""


def _schema(name: str, tool: Tool) -> Schema:
    """The tool's schema under the name that actions call it by."""
    return {"type": "function", "function": {**tool.schema["function"], "name": name}}
