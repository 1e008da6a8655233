"""Batched calls to a Ray actor.

A call to a Ray actor costs each side most of a millisecond. Rollouts make thousands of small calls, and those of a hundred trajectories
come close together: the client collects them for a moment and sends them as one batch, and fetches the results likewise. Each call still
succeeds, fails and is cancelled on its own, and carries what its deadline leaves; none waits for another's result.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from ray.exceptions import RayError

from rl.tools.deadline import deadline, remaining

PAUSE_SECONDS = 0.002
"""Time that the first of several calls, or results, waits for others."""


@dataclass(frozen=True, slots=True)
class ActorCall:
    """A call with pickled arguments and the seconds that its deadline leaves; without a method, it cancels the call of that number."""

    number: int
    method: str | None
    arguments: bytes = b""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ActorResult:
    """The pickled result of a call, or the pickled exception if it `failed`."""

    number: int
    failed: bool
    content: bytes


class CallFailed(Exception):
    """The called method raised `cause`; the actor is fine."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class NotPicklable(Exception):
    """The result or exception of a call cannot be pickled."""


class BatchedActorClient:
    """The caller's side, for all calls of one event loop; a later loop may take it over."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[ActorResult]] = {}
        self._calls: list[ActorCall] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._collecting: asyncio.Task[None] | None = None
        self._received = 0

    async def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of the actor; cancelling the wait cancels the call.

        Raises:
            CallFailed: the method raised.
            RayError: the actor has died.
        """
        packed = pickle.dumps(arguments)
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._enqueue(ActorCall(number, method, packed, remaining()))
        try:
            result = await future
        except asyncio.CancelledError:
            self._enqueue(ActorCall(number, None))
            raise
        finally:
            del self._waiting[number]
        content = pickle.loads(result.content)
        if result.failed:
            raise CallFailed(content) from content
        return content

    def send(self, method: str, *arguments: Any) -> None:
        """Call a method of the actor without waiting for its result."""
        self._enqueue(ActorCall(next(self._numbers), method, pickle.dumps(arguments)))

    def _enqueue(self, call: ActorCall) -> None:
        loop = asyncio.get_running_loop()
        self._calls.append(call)
        if len(self._calls) == 1 or loop is not self._loop:  # what an earlier loop did not send goes along
            self._loop = loop
            loop.call_later(PAUSE_SECONDS, self._send_batch)

    def _send_batch(self) -> None:
        calls, self._calls = self._calls, []
        self._actor.run_calls.remote(calls)
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.get_running_loop().create_task(self._collect())

    async def _collect(self) -> None:
        """Fetch results while anyone waits for one."""
        try:
            while self._waiting:
                results: list[ActorResult] = await self._actor.results.remote(self._received)
                self._received += len(results)
                for result in results:
                    waiting = self._waiting.get(result.number)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(result)
        except RayError as error:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)


class BatchedActor:
    """The actor's side: base class of actors called by a `BatchedActorClient`."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._results: list[ActorResult] = []
        self._acknowledged = 0
        self._new_result = asyncio.Event()

    async def run_calls(self, calls: Sequence[ActorCall]) -> None:
        """Start calls, and cancel abandoned ones."""
        for call in calls:
            if call.method is None:
                task = self._tasks.get(call.number)
                if task is not None:
                    task.cancel()
            else:
                task = asyncio.create_task(self._run(call, call.method))
                self._tasks[call.number] = task
                task.add_done_callback(partial(self._forget, call.number))  # also one that was cancelled before it began

    async def results(self, received: int) -> list[ActorResult]:
        """The results after the first `received` ones, once there are any; repeated until the caller acknowledges them."""
        del self._results[: received - self._acknowledged]
        self._acknowledged = received
        if not self._results:
            self._new_result.clear()
            await self._new_result.wait()
            await asyncio.sleep(PAUSE_SECONDS)
        return list(self._results)

    async def _run(self, call: ActorCall, method: str) -> None:
        failed = False
        try:
            with nullcontext() if call.seconds is None else deadline(call.seconds):
                content: Any = await getattr(self, method)(*pickle.loads(call.arguments))
        except Exception as error:  # for the caller to interpret
            failed, content = True, error
        self._results.append(_pack(call.number, failed, content))
        self._new_result.set()

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]


def _pack(number: int, failed: bool, content: Any) -> ActorResult:
    with contextlib.suppress(Exception):  # pickling runs code of whatever is pickled
        packed = pickle.dumps(content)
        if failed:
            pickle.loads(packed)  # many exceptions can be written and not read
        return ActorResult(number, failed, packed)
    what = f"{type(content).__name__}: {content}" if failed else f"a {type(content).__name__}"
    return ActorResult(number, True, pickle.dumps(NotPicklable(f"{what} cannot be sent to another process")))
