"""Number of concurrent trajectories: the configured maximum, an operator's limit, and a window adapted to engine load.

The window follows additive increase, multiplicative decrease (Chiu and Jain 1989; TCP, RFC 5681): it grows while engines keep up and
trajectories wait, and shrinks to a fraction of the running trajectories when an engine is overloaded. Running trajectories are not stopped,
so a smaller window takes effect as they end, and does not shrink further before. Concurrency does not change the requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from rl.engines.base import EnginePressure
from rl.engines.config import PressureConfig


class Places:
    """First-come, first-served semaphore with a variable limit, for one event loop.

    A lower limit only holds back new tasks; 0 holds back all.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._admit()

    @property
    def waiting(self) -> int:
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
                with suppress(ValueError):  # removed by `_admit` meanwhile
                    self._waiting.remove(turn)
            else:  # admitted at the same moment
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
            if not turn.done():  # else the waiting task was cancelled
                self.taken += 1
                turn.set_result(None)


MOST_LOOKS = 10_000
"""Maximum observations kept until `take_metrics` is called."""


def next_window(window: int, taken: int, waiting: int, pressures: Sequence[EnginePressure], config: PressureConfig, most: int) -> int:
    """The next window, between `config.floor` and `most`.

    Args:
        taken: number of running trajectories.
        waiting: number of trajectories waiting for a place.
        pressures: pressure on each engine since the last check; engines without steps are ignored.
    """
    seen = [pressure for pressure in pressures if pressure.steps]
    if not seen or taken > window:
        return window
    if any(is_pressed(pressure, config) for pressure in seen):
        return max(min(config.floor, most), int(min(window, taken) * config.decrease))
    if waiting and taken == window:
        return min(most, window + config.increase)
    return window


def is_pressed(pressure: EnginePressure, config: PressureConfig) -> bool:
    """Whether an engine is overloaded: KV cache nearly full, requests preempted, or requests queued."""
    return pressure.preempted > 0 or pressure.kv_usage > config.kv_usage or pressure.queue > config.queue


@dataclass(frozen=True, slots=True)
class _Look:
    window: int
    taken: int
    pressures: tuple[EnginePressure, ...]


class Admission:
    """Concurrency control of all streams, adapted to engines and operator; for one event loop."""

    def __init__(self, most: int, config: PressureConfig | None = None) -> None:
        """`most`: maximum running trajectories; without a `config` engine load is ignored."""
        self._most = most
        self._config = config
        self._asked: int | None = None
        self._window = most if config is None else min(config.floor, most)
        self._looks: deque[_Look] = deque(maxlen=MOST_LOOKS)
        self.places = Places(self._window)

    def admit(self, asked: int | None) -> None:
        """Set an operator's limit; None removes it."""
        self._asked = asked
        self._set()

    def follow(self, pressures: Sequence[EnginePressure]) -> None:
        """Adjust the window to the current engine pressures."""
        if self._config is None:
            return
        places = self.places
        self._window = next_window(self._window, places.taken, places.waiting, pressures, self._config, self._most)
        self._looks.append(_Look(self._window, places.taken, tuple(pressures)))
        self._set()

    def take_metrics(self) -> dict[str, float]:
        """Mean window and running trajectories, maximum KV cache usage and queue, and preemptions since the last call; may be empty."""
        looks = list(self._looks)
        self._looks.clear()
        if not looks:
            return {}
        pressures = [pressure for look in looks for pressure in look.pressures]
        return {
            "concurrency/window": sum(look.window for look in looks) / len(looks),
            "concurrency/under_way": sum(look.taken for look in looks) / len(looks),
            "engine_kv_usage": max((pressure.kv_usage for pressure in pressures), default=0.0),
            "engine_queue": float(max((pressure.queue for pressure in pressures), default=0)),
            "engine_preempted": float(sum(pressure.preempted for pressure in pressures)),
        }

    def _set(self) -> None:
        self.places.limit = self._window if self._asked is None else min(self._window, self._asked)
