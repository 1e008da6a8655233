"""Environments made of tools: an action calls a tool, an answer ends the trajectory.

`ToolEnvironment` never reveals whether an answer is right. Registered as `tools`, it takes its tools from a file, so users need no
environment code. `StatefulEnvironment` is for tools that share a state per trajectory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rl.envs.base import EnvironmentFault, Observation, Resources, Step, ToolOutcome, fault_kind
from rl.renderers.base import Action
from rl.tools import Tool, ToolError, ToolFault
from rl.tools.calls import CallOutcome, call_tool, dead_tools
from rl.tools.file import by_name, check_tools_file, load_tools
from rl.tools.tool import NO_TASK, OpenTool
from warehouse.errors import RequestError, with_type
from warehouse.records import ANSWER, Task
from warehouse.settings import Section, read_options


class ToolsOptions(Section):
    """Options of the environment `tools`."""

    file: Path
    """TOML file that lists the tools."""
    search: bool = False
    """Also offer the tool `search` over the home's documents."""


class ToolEnvironment:
    """Tools by the names that actions use, for the trajectory `trajectory_id`."""

    def __init__(self, tools: Mapping[str, Tool], trajectory_id: str = "") -> None:
        self.tools = tools
        self._trajectory_id = trajectory_id
        self._seed, self._begun_with = 0, NO_TASK
        self._opened: dict[str, asyncio.Future[OpenTool]] = {}

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Schemas of the tools, under the names that actions use, in the format of chat templates and OpenAI-compatible servers."""
        return [{"type": "function", "function": tool.schema["function"] | {"name": name}} for name, tool in self.tools.items()]

    async def reset(self, task: Task, seed: int) -> Observation:
        """Return the schemas of the tools and no text. Tools are opened on first use, because many trajectories never call them."""
        self._seed, self._begun_with = seed, task
        return Observation(tools=tuple(self.schemas))

    async def step(self, action: Action) -> Step:
        """Call the tool; the observation is its result or the reason for refusing the call."""
        if action.tool == ANSWER:
            return Step(done=True)
        tool = self.tools.get(action.tool)
        if tool is None:
            return Step(f"Error: there is no tool {action.tool}, only {', '.join(self.tools)}", tool_outcome=ToolOutcome.ERROR)
        try:
            return _step(await call_tool(tool, await self._open(action.tool, tool), action.arguments))
        except ToolFault as fault:
            raise EnvironmentFault(str(fault), fault_kind(fault)) from fault

    async def probe(self) -> None:
        """Check that every tool is alive. Raises EnvironmentFault naming those that are not."""
        dead = await dead_tools(self.tools)
        if dead:
            raise EnvironmentFault("; ".join(dead))

    async def close(self) -> None:
        """Release every opened tool, even if releasing another fails."""
        opened, self._opened = self._opened, {}
        released = await asyncio.gather(*map(_release, opened.values()), return_exceptions=True)
        for name, error in zip(opened, released, strict=True):
            if error is not None:
                raise EnvironmentFault(f"the tool {name!r} could not be released: {with_type(error)}", fault_kind(error)) from error

    async def _open(self, name: str, tool: Tool) -> OpenTool:
        """The trajectory's instance of the tool; concurrent calls open it once."""
        if name not in self._opened:
            self._opened[name] = asyncio.ensure_future(tool.open(self._trajectory_id, self._seed, self._begun_with))
        try:
            return await self._opened[name]
        except (ToolFault, RequestError):
            raise
        except Exception as error:
            raise ToolFault(f"the tool {name!r} could not be opened: {with_type(error)}") from error


def check_options(options: Mapping[str, Any], where: str) -> None:
    """Check the file of tools. Raises RequestError."""
    check_tools_file(read_options(ToolsOptions, options, where).file)


def create(resources: Resources) -> ToolEnvironment:
    """Create the environment of one trajectory with the tools of the configured file."""
    options = resources.read(ToolsOptions)
    tools = resources.once(f"tools of {options.file}", partial(load_tools, options.file)).tools
    if not options.search:
        return ToolEnvironment(tools, resources.trajectory_id)
    if resources.index is None:
        raise RequestError("the option search of the environment 'tools' needs documents, and there are none: import some.")
    from rl.envs.search import SearchEnvironment  # circular import

    both = by_name([*SearchEnvironment(resources.index).tools.values(), *tools.values()])
    return ToolEnvironment(both, resources.trajectory_id)


def create_without_tools(resources: Resources) -> ToolEnvironment:
    """Create an environment without tools: answers only, or a harness with tools of its own."""
    return ToolEnvironment({})


async def _release(opened: asyncio.Future[OpenTool]) -> None:
    if not opened.done():
        opened.cancel()
    elif not opened.cancelled() and opened.exception() is None:
        await opened.result().release()


def _step(call: CallOutcome) -> Step:
    info: dict[str, Any] = {} if call.arguments is None else {"arguments": dict(call.arguments)}
    if call.refusal is not None:
        wrong = isinstance(call.refusal, ToolError)
        text, outcome = f"Error: {call.refusal}" if wrong else str(call.refusal), ToolOutcome.ERROR if wrong else ToolOutcome.MISS
        return Step(text, tool_outcome=outcome, info=info, retries=call.retries, latency_seconds=call.latency_seconds)
    shown = call.response
    assert shown is not None
    info |= {"figures": dict(shown.figures)} if shown.figures else {}
    info |= {"cut_characters": shown.cut} if shown.cut else {}
    return Step(
        shown.text,
        reward=shown.reward,
        tool_outcome=ToolOutcome.OK,
        info=info,
        parts=shown.parts,
        retries=call.retries,
        latency_seconds=call.latency_seconds,
    )


class StatefulEnvironment(ToolEnvironment):
    """Tools that share a state per trajectory: calls run one at a time, even within one turn.

    Calls after the one that ended the trajectory are refused, because they would be rewarded again.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        super().__init__(tools)
        self._lock = asyncio.Lock()
        self._over = False

    async def reset(self, task: Task, seed: int) -> Observation:
        self._over = False
        return await super().reset(task, seed)

    async def step(self, action: Action) -> Step:
        """Call the tool and complete its step. Raises EnvironmentFault if an earlier step ended the trajectory."""
        async with self._lock:
            if self._over:
                raise EnvironmentFault("the trajectory has ended")
            step = self._complete(await super().step(action))
            self._over = step.done
            return step

    def _complete(self, step: Step) -> Step:
        """Hook for subclasses: add reward and figures, and set `done`."""
        return step
