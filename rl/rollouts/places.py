"""Places for trajectories that run side by side, whose number may change while they run."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from types import TracebackType


class Places:
    """A semaphore whose bound may be set at any time; who waits comes in by turn. For the tasks of one event loop.

    A lower bound takes no place away: it holds new ones back until so many have been left. 0 holds all back.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """How many may be taken at a time."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._admit()

    @property
    def waiting(self) -> int:
        """Tasks that wait for a place."""
        return len(self._waiting)

    async def __aenter__(self) -> None:
        if self.taken < self._limit and not self._waiting:
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # it was passed over meanwhile
                    self._waiting.remove(turn)
            else:  # its turn had come in the same moment
                self._leave()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self.taken -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.taken < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():  # else whoever waited was cancelled
                self.taken += 1
                turn.set_result(None)
