"""Calls of a tool that is opened for them."""

from __future__ import annotations

from typing import Any

from rl.tools import Tool
from rl.tools.calls import CallOutcome, call_tool
from rl.tools.tool import NO_TASK


async def call(tool: Tool, arguments: Any) -> CallOutcome:
    return await call_tool(tool, await tool.open("t", 0, NO_TASK), arguments)


async def text_of(tool: Tool, arguments: Any) -> str:
    """What the call shows."""
    shown = (await call(tool, arguments)).response
    assert shown is not None
    return shown.text
