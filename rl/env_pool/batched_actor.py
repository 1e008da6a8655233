"""Batched calls to a Ray actor.

A Ray actor call costs each side nearly a millisecond, and rollouts make thousands of small, nearly simultaneous calls. The client collects
calls briefly, sends them as one batch, and fetches results likewise. Each call still succeeds, fails and is cancelled on its own, carries
the time left to its deadline, and does not wait for other results.
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
"""Seconds that the first call or result of a batch waits for others."""


@dataclass(frozen=True, slots=True)
class ActorCall:
    """A call with pickled arguments and the `seconds` left to its deadline; without a method, it cancels call `number`."""

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
    """The called method raised `cause`; the actor is intact."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class NotPicklable(Exception):
    """The result or exception of a call cannot be pickled."""


class BatchedActorClient:
    """Caller side, for all calls of one event loop; a later loop may take it over."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[ActorResult]] = {}
        self._calls: list[ActorCall] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._collecting: asyncio.Task[None] | None = None
        self._received = 0

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor and return its result; cancelling the await cancels the call.

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
        if len(self._calls) == 1 or loop is not self._loop:  # calls that an earlier loop did not send are included
            self._loop = loop
            loop.call_later(PAUSE_SECONDS, self._send_batch)

    def _send_batch(self) -> None:
        calls, self._calls = self._calls, []
        self._actor.run_calls.remote(calls)
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.get_running_loop().create_task(self._collect())

    async def _collect(self) -> None:
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
    """Actor side: base class of actors called by a `BatchedActorClient`."""

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
                task.add_done_callback(partial(self._forget, call.number))  # also if cancelled before it started

    async def results(self, received: int) -> list[ActorResult]:
        """Return results after the first `received` ones, once there are any; they are returned again until acknowledged by `received`."""
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
        except Exception as error:  # raised again in the caller
            failed, content = True, error
        self._results.append(_pack(call.number, failed, content))
        self._new_result.set()

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]


def _pack(number: int, failed: bool, content: Any) -> ActorResult:
    with contextlib.suppress(Exception):  # pickling runs code of the pickled object
        packed = pickle.dumps(content)
        if failed:
            pickle.loads(packed)  # some exceptions pickle but do not unpickle
        return ActorResult(number, failed, packed)
    what = f"{type(content).__name__}: {content}" if failed else f"a {type(content).__name__}"
    return ActorResult(number, True, pickle.dumps(NotPicklable(f"{what} cannot be sent to another process")))
