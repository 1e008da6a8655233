"""What people ask of a wheel that turns, `flywheel pause|resume|limit`: to stand still, and how many trajectories may run side by side.

It lives as long as the process at work: one that is started again is neither paused nor limited.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import StrEnum

LOOK_SECONDS = 1.0
"""Pause between two looks of whoever waits: a stage that is cancelled or takes too long is told so between them."""


class Order(StrEnum):
    """What may be asked."""

    pause = "pause"
    """Nothing new begins; trajectories under way end, and a stage waits behind its step or batch."""
    resume = "resume"
    limit = "limit"
    """At most so many trajectories run side by side."""


@dataclass(frozen=True, slots=True)
class ControlState:
    """What holds at this moment: since when the wheel is paused, in seconds since 1970, and the limit on its trajectories."""

    paused_since: float | None = None
    limit: int | None = None

    @property
    def admitted(self) -> int | None:
        """How many trajectories may run side by side; None is as many as the configuration says."""
        return self.limit if self.paused_since is None else 0


class Control:
    """The state of a process, to be changed by one thread and waited on by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going = threading.Event()
        self._going.set()
        self._state = ControlState()
        self._stopped = 0.0
        self._before = 0.0

    @property
    def state(self) -> ControlState:
        """What holds now."""
        return self._state

    @property
    def paused_seconds(self) -> float:
        """How long it has been paused in all."""
        with self._lock:
            return self._before + (0.0 if self._going.is_set() else time.monotonic() - self._stopped)

    def obey(self, order: Order, limit: int | None = None) -> None:
        """Do as is asked; a pause of what is paused and the resumption of what is not change nothing."""
        with self._lock:
            if order is Order.limit:
                self._state = ControlState(self._state.paused_since, limit)
            elif order is Order.pause and self._going.is_set():
                self._going.clear()
                self._stopped = time.monotonic()
                self._state = ControlState(time.time(), self._state.limit)
            elif order is Order.resume and not self._going.is_set():
                self._before += time.monotonic() - self._stopped
                self._going.set()
                self._state = ControlState(None, self._state.limit)

    def wait(self) -> None:
        """Wait as long as it is paused."""
        while not self._going.wait(LOOK_SECONDS):
            pass
