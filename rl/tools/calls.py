"""One call of a tool: arguments read, faults tried again where the tool allows it, time taken; and the probe, which is a call too."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from rl.tools.config import CallRules
from rl.tools.errors import ToolError, ToolFault, ToolMiss, one_line
from rl.tools.results import Shown, cut_off
from rl.tools.tool import OpenTool, Tool
from warehouse.errors import RequestError

PROBE = "probe"
"""The id of the trajectory that a tool is probed for."""
MAX_BACKOFF_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Call:
    """What came of a call: `shown`, or the `refusal` that the policy is told.

    `arguments` are None where they could not be read. `retries` counts the faults before it went through; `latency_seconds` is the time
    of all tries and of the pauses between them.
    """

    shown: Shown | None
    refusal: ToolError | ToolMiss | None
    arguments: Mapping[str, Any] | None
    retries: int
    latency_seconds: float


@dataclass(slots=True)
class _Tries:
    """What is known of a call while it is under way."""

    arguments: Mapping[str, Any] | None = None
    count: int = 0
    began: float = field(default_factory=time.perf_counter)

    def ended(self, shown: Shown | None, refusal: ToolError | ToolMiss | None) -> Call:
        return Call(shown, refusal, self.arguments, max(0, self.count - 1), time.perf_counter() - self.began)


async def perform(tool: Tool, opened: OpenTool, arguments: str | Mapping[str, Any]) -> Call:
    """Call a tool that was opened for a trajectory.

    Raises:
        ToolFault: where it failed, as often as its rules let it be tried. It names the tool.
        RequestError: where the tool asks for something to be mended.
    """
    tries = _Tries()
    try:
        tries.arguments = tool.read(arguments)
        return tries.ended(await _until_it_goes_through(tool, opened, tries), None)
    except (ToolError, ToolMiss) as refusal:
        return tries.ended(None, bounded(refusal, tool.rules))
    except RequestError:
        raise
    except Exception as error:
        raise ToolFault(_sentence(tool.name, error, tries.count)) from error


def bounded(refusal: ToolError | ToolMiss, rules: CallRules) -> ToolError | ToolMiss:
    """The same refusal in no more characters than a result may have."""
    text, _ = cut_off(str(refusal), rules.max_characters)
    return ToolError(text) if isinstance(refusal, ToolError) else ToolMiss(text)


async def check_health(tool: Tool) -> None:
    """See whether a tool is alive: by what it says of itself, and by its probe where it has one.

    Raises:
        ToolFault: where it is dead; the sentence names it.
    """
    try:
        await tool.examine()
        refusal = None if tool.rules.probe is None else await _probe(tool, tool.rules.probe)
    except Exception as error:
        reason = str(error) if isinstance(error, ToolFault) else one_line(error)
        raise ToolFault(f"the tool {tool.name!r} is dead: {reason}") from error
    if refusal is not None:
        probe = json.dumps(tool.rules.probe, ensure_ascii=False)
        raise ToolFault(f"the tool {tool.name!r} is dead: it refused its probe {probe}: {refusal}")


async def _probe(tool: Tool, arguments: Mapping[str, Any]) -> ToolError | ToolMiss | None:
    opened = await tool.open(PROBE, seed=0)
    try:
        await _until_it_goes_through(tool, opened, _Tries(tool.read(arguments)))
        return None
    except (ToolError, ToolMiss) as refusal:
        return refusal
    finally:
        await opened.release()


async def _until_it_goes_through(tool: Tool, opened: OpenTool, tries: _Tries) -> Shown:
    rules = tool.rules
    if not rules.retries:  # most tools: tenacity's bookkeeping takes as long as a quick call
        tries.count = 1
        return await opened.call(tries.arguments or {})
    attempts = AsyncRetrying(
        retry=retry_if_exception(_may_be_tried_again),
        stop=stop_after_attempt(rules.retries + 1),
        wait=wait_exponential(multiplier=rules.backoff_seconds, max=MAX_BACKOFF_SECONDS),
        reraise=True,
    )
    async for attempt in attempts:
        with attempt:
            tries.count += 1
            return await opened.call(tries.arguments or {})
    raise AssertionError("unreachable: the last attempt returns or raises")


def _may_be_tried_again(error: BaseException) -> bool:
    """Faults alone: a wrong call would be as wrong again, and a cancelled one is not wanted any more."""
    return isinstance(error, Exception) and not isinstance(error, ToolError | ToolMiss | RequestError)


def _sentence(name: str, error: Exception, tries: int) -> str:
    reason = str(error) if isinstance(error, ToolFault) else one_line(error)
    often = f" {tries} times" if tries > 1 else ""
    return f"the tool {name!r} failed{often}: {reason}"
