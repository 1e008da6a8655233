"""What stands behind a teacher: a model that is asked once, and either completes or says why not, and the event loop that it lives in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, TypeVar

from synth.teachers.teacher import PASSING, Fault
from warehouse.records import Completion, Request

RETRYABLE = PASSING - {Fault.BUDGET}
"""Faults after which the same request may succeed at once."""

_UNBILLED = frozenset({Fault.RATE_LIMITED, Fault.SERVER_ERROR, Fault.REFUSED})
"""Faults that cost no token. After others the server may have written everything that it was asked for."""


class SourceError(Exception):
    """A try that brought no completion.

    `text` is what came instead, `pause_seconds` how long the server asks to be left alone, `reached` whether the request may have come to
    the server at all, and `number` that of the try in the ledger.
    """

    number = 0

    def __init__(self, fault: Fault, reason: str, text: str = "", pause_seconds: float | None = None, reached: bool = True) -> None:
        super().__init__(reason)
        self.fault, self.reason, self.text, self.pause_seconds, self.reached = fault, reason, text, pause_seconds, reached

    @property
    def may_be_billed(self) -> bool:
        """Whether the try may have cost as much as it could."""
        return self.reached and self.fault not in _UNBILLED


class Source(Protocol):
    """A model. Tries, pauses, limits and the cache are not its business."""

    @property
    def name(self) -> str:
        """The teacher's name."""
        ...

    async def generate(self, request: Request) -> Completion:
        """One try.

        Raises:
            SourceError: where it brought nothing.
            RequestError: where no request whatever can succeed.
        """
        ...

    async def close(self) -> None:
        """Give back what is held."""
        ...


T = TypeVar("T")


class BackgroundLoop:
    """The loop and its thread, from construction to `close` or the end of a `with` block."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, from any thread but the loop's own."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Cancel what is under way, so that nobody waits for it for ever, stop the loop and end the thread."""
        self.wait(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> BackgroundLoop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
