"""Deadline of a call: set where the call enters, and inherited by everything below it.

A nested deadline never ends later than the enclosing one. Deadlines are context variables, so tasks and threads started below inherit them;
a message to another process carries the remaining seconds (`rl.env_pool.batched_actor`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time on this process's monotonic clock, and the seconds that the call had when it was set."""

    at: float
    seconds: float

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0 once it has passed."""
        return max(0.0, self.at - time.monotonic())


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def deadline(seconds: float) -> Iterator[Deadline]:
    """Set a deadline of `seconds` for this context, or keep the enclosing one if it is earlier."""
    own, outer = Deadline(time.monotonic() + seconds, seconds), _current.get()
    nearest = own if outer is None or own.at < outer.at else outer
    token = _current.set(nearest)
    try:
        yield nearest
    finally:
        _current.reset(token)


def remaining() -> float | None:
    """Seconds left for the current call; None without a deadline."""
    current = _current.get()
    return None if current is None else current.remaining
