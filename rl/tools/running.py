"""Running what others wrote: in a thread or in the loop, within a time, whatever it raises.

A thread of its own for each call, and not one of a pool: a pool of hung threads would hold up the calls of every trajectory.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from rl.tools.errors import ToolFault, ToolTimeout

T = TypeVar("T")
S = TypeVar("S")


async def run(function: Callable[..., Any], values: dict[str, Any], finish: Callable[[Any], T], seconds: float) -> T:
    """`finish(function(**values))`: both in a thread where the function is a plain one, else both in this loop.

    Raises:
        ToolTimeout: where it takes longer than `seconds`.
        ToolFault: where it wants to end the process.
    """
    if inspect.iscoroutinefunction(function):
        return await within(_then(function(**values), finish), seconds)
    return await within(in_thread(lambda: finish(function(**values))), seconds)


async def within(work: Awaitable[T], seconds: float) -> T:
    """The result of `work`. It is not waited for once its time is over, even where it will not be cancelled."""
    task = asyncio.ensure_future(_contained(work))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise ToolTimeout(f"it took longer than {seconds:g} seconds")
        if task.cancelled():
            raise ToolFault("it cancelled itself")
        return task.result()
    finally:
        task.cancel()


async def in_thread(function: Callable[[], T]) -> T:
    """The result of a function that runs in a thread, in the context of the caller."""
    future: Future[T] = Future()
    work = partial(contextvars.copy_context().run, function)
    threading.Thread(target=_settle, args=(future, work), daemon=True, name="tool").start()
    return await asyncio.wrap_future(future)


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    future.set_running_or_notify_cancel()
    try:
        future.set_result(function())
    except StopIteration as error:  # no future can hold one: whoever waits would wait for ever
        future.set_exception(ToolFault(f"it raised {error!r}"))
    except BaseException as error:
        future.set_exception(error)


async def _contained(work: Awaitable[T]) -> T:
    """`work`, except that it cannot end the process: asyncio lets these two through its loop."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise ToolFault(f"it wanted to end the process: {error!r}") from error


async def _then(work: Awaitable[S], finish: Callable[[S], T]) -> T:
    return finish(await work)
