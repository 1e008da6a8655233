"""Call a tool: parse arguments, run in a thread or the event loop within a deadline, retry faults. Probes are calls too.

Each call gets its own thread instead of one from a pool, because hung threads of a pool would block the calls of every trajectory.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from rl.tools.config import CallRules
from rl.tools.deadline import deadline, remaining
from rl.tools.tool import NO_TASK, OpenTool, Tool, ToolError, ToolFault, ToolMiss, ToolResponse, ToolTimeout, cut_off
from warehouse.errors import RequestError, with_type

T = TypeVar("T")
S = TypeVar("S")
PROBE = "probe"
"""Trajectory id of probes."""
MAX_BACKOFF_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The `response` of a call, or the `refusal` to show to the policy.

    `arguments` is None if they could not be parsed. `retries` counts faults before success; `latency_seconds` covers all attempts and
    pauses.
    """

    response: ToolResponse | None
    refusal: ToolError | ToolMiss | None
    arguments: Mapping[str, Any] | None
    retries: int
    latency_seconds: float


@dataclass(slots=True)
class _CallInProgress:
    arguments: Mapping[str, Any] | None = None
    attempts: int = 0
    started: float = field(default_factory=time.perf_counter)

    def outcome(self, response: ToolResponse | None, refusal: ToolError | ToolMiss | None) -> CallOutcome:
        return CallOutcome(response, refusal, self.arguments, max(0, self.attempts - 1), time.perf_counter() - self.started)


async def call_tool(tool: Tool, opened: OpenTool, arguments: str | Mapping[str, Any]) -> CallOutcome:
    """Call a tool that was opened for a trajectory.

    Raises:
        ToolFault: all attempts failed; names the tool.
        RequestError: the user must fix something.
    """
    call = _CallInProgress()
    try:
        call.arguments = tool.read(arguments)
        return call.outcome(await _with_retries(tool, opened, call), None)
    except (ToolError, ToolMiss) as refusal:
        return call.outcome(None, bounded_refusal(refusal, tool.rules))
    except RequestError:
        raise
    except Exception as error:
        often = f" {call.attempts} times" if call.attempts > 1 else ""
        raise ToolFault(f"the tool {tool.name!r} failed{often}: {_reason(error)}") from error


def bounded_refusal(refusal: ToolError | ToolMiss, rules: CallRules) -> ToolError | ToolMiss:
    """The same refusal, truncated to the limit of results."""
    text, _ = cut_off(str(refusal), rules.max_characters)
    return ToolError(text) if isinstance(refusal, ToolError) else ToolMiss(text)


async def dead_tools(tools: Mapping[str, Tool]) -> tuple[str, ...]:
    """Probe all tools concurrently; return a sentence for each dead one."""
    answers = await asyncio.gather(*map(check_health, tools.values()), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, ToolFault):
            raise answer
    return tuple(str(answer) for answer in answers if answer is not None)


async def check_health(tool: Tool) -> None:
    """Check a tool with its own health check, and with its probe if it has one.

    Raises:
        ToolFault: it is dead; names the tool.
    """
    try:
        await tool.examine()
        refusal = None if tool.rules.probe is None else await _probe(tool, tool.rules.probe)
    except Exception as error:
        raise ToolFault(f"the tool {tool.name!r} is dead: {_reason(error)}") from error
    if refusal is not None:
        probe = json.dumps(tool.rules.probe, ensure_ascii=False)
        raise ToolFault(f"the tool {tool.name!r} is dead: it refused its probe {probe}: {refusal}")


async def run(function: Callable[..., Any], values: dict[str, Any], finish: Callable[[Any], T], seconds: float) -> T:
    """Return `finish(function(**values))`, run in a thread for a plain function, else in this loop.

    Raises:
        ToolTimeout: it takes longer than `seconds`, or than its deadline allows.
        ToolFault: it tries to end the process.
    """
    if inspect.iscoroutinefunction(function):
        return await within(_then(function(**values), finish), seconds)
    return await within(in_thread(lambda: finish(function(**values))), seconds)


async def within(work: Awaitable[T], seconds: float) -> T:
    """Await `work` within `seconds` and the deadline of the call. Work that resists cancellation is abandoned. Raises ToolTimeout."""
    with deadline(seconds) as limit:
        task = asyncio.ensure_future(_contained(work))
        try:
            done, _ = await asyncio.wait({task}, timeout=limit.remaining)
            if not done:
                raise ToolTimeout(f"it took longer than {limit.seconds:g} seconds")
            if task.cancelled():
                raise ToolFault("it cancelled itself")
            return task.result()
        finally:
            task.cancel()


async def in_thread(function: Callable[[], T]) -> T:
    """Run a function in a new thread, in the caller's context, and return its result."""
    future: Future[T] = Future()
    work = partial(contextvars.copy_context().run, function)
    threading.Thread(target=_settle, args=(future, work), daemon=True, name="tool").start()
    return await asyncio.wrap_future(future)


async def _probe(tool: Tool, arguments: Mapping[str, Any]) -> ToolError | ToolMiss | None:
    opened = await tool.open(PROBE, 0, NO_TASK)
    try:
        await _with_retries(tool, opened, _CallInProgress(tool.read(arguments)))
        return None
    except (ToolError, ToolMiss) as refusal:
        return refusal
    finally:
        await opened.release()


async def _with_retries(tool: Tool, opened: OpenTool, call: _CallInProgress) -> ToolResponse:
    rules = tool.rules
    if not rules.retries:  # fast path: tenacity's bookkeeping takes as long as a quick call
        call.attempts = 1
        return await opened.call(call.arguments or {})
    attempts = AsyncRetrying(
        retry=retry_if_exception(_may_be_retried),
        stop=stop_after_attempt(rules.retries + 1),
        wait=wait_exponential(multiplier=rules.backoff_seconds, max=MAX_BACKOFF_SECONDS),
        reraise=True,
    )
    async for attempt in attempts:
        with attempt:
            call.attempts += 1
            return await opened.call(call.arguments or {})
    raise AssertionError("unreachable: the last attempt returns or raises")


def _may_be_retried(error: BaseException) -> bool:
    """Retry only faults, and only while time remains; a wrong call would fail again, and a cancelled one is no longer needed."""
    return isinstance(error, Exception) and not isinstance(error, ToolError | ToolMiss | RequestError) and remaining() != 0


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ToolFault) else with_type(error)


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    future.set_running_or_notify_cancel()
    try:
        future.set_result(function())
    except StopIteration as error:  # a future cannot hold it, and the caller would wait forever
        future.set_exception(ToolFault(f"it raised {error!r}"))
    except BaseException as error:
        future.set_exception(error)


async def _contained(work: Awaitable[T]) -> T:
    """Convert exceptions that would end the process, which asyncio lets through its loop, to ToolFault."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise ToolFault(f"it tried to end the process: {error!r}") from error


async def _then(work: Awaitable[S], finish: Callable[[S], T]) -> T:
    return finish(await work)
