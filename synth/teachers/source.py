"""Sources of completions behind `ModelTeacher`: single tries, their faults, and the event loop that runs them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, TypeVar

from synth.teachers.teacher import PASSING, Fault
from warehouse.records import Completion, Request

RETRYABLE = PASSING - {Fault.BUDGET}
"""Faults after which the same request may succeed immediately."""

_UNBILLED = frozenset({Fault.RATE_LIMITED, Fault.SERVER_ERROR, Fault.REFUSED})
"""Faults that cost no tokens; after others the server may have generated the whole completion."""


class SourceError(Exception):
    """A failed try.

    `text` is what was received instead, `pause_seconds` the server's `Retry-After`, `reached` whether the request may have reached the
    server, and `number` the try's number in the ledger.
    """

    number = 0

    def __init__(self, fault: Fault, reason: str, text: str = "", pause_seconds: float | None = None, reached: bool = True) -> None:
        super().__init__(reason)
        self.fault, self.reason, self.text, self.pause_seconds, self.reached = fault, reason, text, pause_seconds, reached

    @property
    def may_be_billed(self) -> bool:
        """Whether the try may have cost its maximum."""
        return self.reached and self.fault not in _UNBILLED


MESSAGE_OVERHEAD_TOKENS = 16
"""Tokens that a chat template may add per message."""


def largest_cost(request: Request) -> int:
    """Upper bound of a request's tokens, prompt and completion; byte-level tokenizers produce at most one token per byte."""
    prompt = sum(len(message.content.encode()) + MESSAGE_OVERHEAD_TOKENS for message in request.messages)
    return prompt + len((request.tools or "").encode()) + request.max_tokens


class Source(Protocol):
    """A model without retries, limits and cache."""

    @property
    def name(self) -> str: ...

    async def generate(self, request: Request) -> Completion:
        """Make one try.

        Raises:
            SourceError: the try failed.
            RequestError: no request can succeed.
        """
        ...

    async def close(self) -> None: ...


T = TypeVar("T")


class BackgroundLoop:
    """An event loop in its own thread; a context manager."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` and return its result; call from any thread except the loop's."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Cancel pending work and end the thread."""
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
