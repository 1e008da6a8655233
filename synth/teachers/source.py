"""What stands behind a teacher: a model that is asked once, and either completes or says why not."""

from __future__ import annotations

from typing import Protocol

from synth.teachers.teacher import Fault, Request
from warehouse.records import Completion

PASSING = frozenset({Fault.TIMEOUT, Fault.CONNECTION, Fault.RATE_LIMITED, Fault.SERVER_ERROR, Fault.MALFORMED})
"""Faults after which the same request may succeed."""

UNBILLED = frozenset({Fault.CONNECTION, Fault.RATE_LIMITED, Fault.SERVER_ERROR, Fault.REFUSED})
"""Faults that cost no token. After others the server may have written everything that it was asked for."""


class Unanswered(Exception):
    """A try that brought no completion; `text` is what came instead, `pause_seconds` how long the server asks to be left alone."""

    def __init__(self, fault: Fault, reason: str, text: str = "", pause_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.fault, self.reason, self.text, self.pause_seconds = fault, reason, text, pause_seconds


class Source(Protocol):
    """A model. Tries, pauses, limits and the cache are not its business."""

    @property
    def name(self) -> str:
        """The teacher's name."""
        ...

    async def generate(self, request: Request) -> Completion:
        """One try.

        Raises:
            Unanswered: where it brought nothing.
            RequestError: where no request whatever can succeed.
        """
        ...

    async def close(self) -> None:
        """Give back what is held."""
        ...
