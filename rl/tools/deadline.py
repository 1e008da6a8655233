"""The deadline of a call: set where the call enters, and inherited by everything below it.

A deadline inside another one ends no later than that. It is a context variable, so tasks and threads started below it inherit it; a message
to another process carries the seconds that remain (`rl.env_pool.batched_actor`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of this process's monotonic clock, and the seconds that the call had when it was set."""

    at: float
    seconds: float

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0 once it has passed."""
        return max(0.0, self.at - time.monotonic())


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def deadline(seconds: float) -> Iterator[Deadline]:
    """Give what runs in this context `seconds`, or what remains of the enclosing deadline if that is less."""
    own, outer = Deadline(time.monotonic() + seconds, seconds), _current.get()
    nearest = own if outer is None or own.at < outer.at else outer
    token = _current.set(nearest)
    try:
        yield nearest
    finally:
        _current.reset(token)


def remaining() -> float | None:
    """Seconds that the current call has left; None without a deadline."""
    current = _current.get()
    return None if current is None else current.remaining
