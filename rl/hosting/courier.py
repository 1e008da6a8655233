"""Calls to an actor, many in one message.

A call to a Ray actor takes each side most of a millisecond, however little it asks. Rollouts make thousands of small calls, and those of
a hundred trajectories come close together: a courier collects them for a moment and carries them as one, and brings the answers in the
same way. Each call still succeeds, fails and is cancelled by itself; nobody waits for another's answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ray.exceptions import RayError

PAUSE_SECONDS = 0.002
"""How long the first of several calls, or answers, waits for others."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A call on its way, its arguments pickled; without a method, word that nobody waits for it any more."""

    number: int
    method: str | None
    arguments: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call came to: `content` is its pickled result, or the pickled exception where it `failed`."""

    number: int
    failed: bool
    content: bytes


class CallFailed(Exception):
    """The method that was called raised `cause`; the actor is well."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class Unanswerable(Exception):
    """What a call returned or raised cannot be sent to another process."""


class Courier:
    """The caller's end. All calls of one event loop; a later loop may take it over."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._letters: list[Letter] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._collecting: asyncio.Task[None] | None = None
        self._received = 0

    async def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of the actor; whoever stops waiting cancels it there.

        Raises:
            CallFailed: the method raised.
            RayError: the actor is gone.
        """
        packed = pickle.dumps(arguments)
        number = next(self._numbers)
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(Letter(number, method, packed))
        try:
            answer = await answered
        except asyncio.CancelledError:
            self._send(Letter(number, None))
            raise
        finally:
            del self._waiting[number]
        content = pickle.loads(answer.content)
        if answer.failed:
            raise CallFailed(content) from content
        return content

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method of the actor whose end nobody waits for."""
        self._send(Letter(next(self._numbers), method, pickle.dumps(arguments)))

    def _send(self, letter: Letter) -> None:
        loop = asyncio.get_running_loop()
        self._letters.append(letter)
        if len(self._letters) == 1 or loop is not self._loop:  # what an earlier loop did not deliver goes along
            self._loop = loop
            loop.call_later(PAUSE_SECONDS, self._deliver)

    def _deliver(self) -> None:
        letters, self._letters = self._letters, []
        self._actor.deliver.remote(letters)
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.get_running_loop().create_task(self._collect())

    async def _collect(self) -> None:
        """Bring answers as long as somebody waits for one."""
        try:
            while self._waiting:
                answers: list[Answer] = await self._actor.answers.remote(self._received)
                self._received += len(answers)
                for answer in answers:
                    waiting = self._waiting.get(answer.number)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(answer)
        except RayError as error:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)


class Reachable:
    """The actor's end: what an actor inherits that a courier calls."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._answers: list[Answer] = []
        self._taken = 0
        self._news = asyncio.Event()

    async def deliver(self, letters: Sequence[Letter]) -> None:
        """Begin the calls, and end those that nobody waits for."""
        for letter in letters:
            if letter.method is None:
                task = self._tasks.get(letter.number)
                if task is not None:
                    task.cancel()
            else:
                task = asyncio.create_task(self._answer(letter.number, letter.method, letter.arguments))
                self._tasks[letter.number] = task
                task.add_done_callback(partial(self._forget, letter.number))  # also one that was cancelled before it began

    async def answers(self, received: int) -> list[Answer]:
        """The answers after the first `received` ones, as soon as there is one: the same again until the caller says it has them."""
        del self._answers[: received - self._taken]
        self._taken = received
        if not self._answers:
            self._news.clear()
            await self._news.wait()
            await asyncio.sleep(PAUSE_SECONDS)
        return list(self._answers)

    async def _answer(self, number: int, method: str, arguments: bytes) -> None:
        failed = False
        try:
            content: Any = await getattr(self, method)(*pickle.loads(arguments))
        except Exception as error:  # it is the caller's to understand
            failed, content = True, error
        self._answers.append(_packed(number, failed, content))
        self._news.set()

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]


def _packed(number: int, failed: bool, content: Any) -> Answer:
    """An answer that can be sent, whatever it is about."""
    with contextlib.suppress(Exception):  # pickling runs code of whatever is pickled
        packed = pickle.dumps(content)
        if failed:
            pickle.loads(packed)  # many exceptions can be written and not read
        return Answer(number, failed, packed)
    what = f"{type(content).__name__}: {content}" if failed else f"a {type(content).__name__}"
    return Answer(number, True, pickle.dumps(Unanswerable(f"{what} cannot be sent to another process")))
