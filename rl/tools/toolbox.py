"""Several tools by the names that actions call them by, and the gate that says which of them are dead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from rl.tools.calls import check_health
from rl.tools.errors import ToolFault
from rl.tools.tool import Tool
from warehouse.errors import RequestError


def by_name(tools: Iterable[Tool], where: str = "") -> dict[str, Tool]:
    """Tools by their names.

    Raises:
        RequestError: where two have the same.
    """
    named: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in named:
            raise RequestError(f"two tools{where} are called {tool.name!r}: rename one, or give its server a prefix.")
        named[tool.name] = tool
    return named


async def dead_tools(tools: Mapping[str, Tool]) -> tuple[str, ...]:
    """A sentence for each tool that is dead, which names it; all are asked at once."""
    answers = await asyncio.gather(*map(check_health, tools.values()), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, ToolFault):
            raise answer
    return tuple(str(answer) for answer in answers if answer is not None)
