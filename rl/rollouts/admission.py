"""Places for trajectories that run side by side, whose number may change while they run.

How many trajectories run side by side: as many as is configured, as somebody asked for, and as the engines can take.

The last is additive increase and multiplicative decrease (Chiu and Jain 1989), as TCP has it (RFC 5681): the window grows by a fixed
number while engines keep up and somebody waits for a place, and shrinks to a share of what is under way where one is pressed. Who is
under way keeps his place, so a smaller window shows only as trajectories end; until then it does not shrink again.

Concurrency changes which trajectories are in an engine at the same time, and nothing that is asked of it: prompts, seeds, temperatures.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from rl.engines.config import PressureConfig
from rl.engines.pressure import EnginePressure


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


MOST_LOOKS = 10_000
"""That are kept for figures which nobody asks for."""


def next_window(window: int, taken: int, waiting: int, pressures: Sequence[EnginePressure], config: PressureConfig, most: int) -> int:
    """The window after one look, between `config.floor` and `most`.

    Args:
        taken: trajectories under way.
        waiting: those that wait for a place.
        pressures: of each engine since the last look; one that made no step says nothing.
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
    """Whether an engine has more than it can take: its cache is nearly full or has thrown requests out, or requests stand in a queue."""
    return pressure.preempted > 0 or pressure.kv_usage > config.kv_usage or pressure.queue > config.queue


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen at one look, and the window after it."""

    window: int
    taken: int
    pressures: tuple[EnginePressure, ...]


class Admission:
    """The places of all streams, whose number follows the engines and what somebody asked for. For one event loop."""

    def __init__(self, most: int, config: PressureConfig | None = None) -> None:
        """`most`: trajectories at any time; without a `config` no engine is looked at."""
        self._most = most
        self._config = config
        self._asked: int | None = None
        self._window = most if config is None else min(config.floor, most)
        self._looks: deque[_Look] = deque(maxlen=MOST_LOOKS)
        self.places = Places(self._window)

    def admit(self, asked: int | None) -> None:
        """At most so many from now on; None is whatever else holds."""
        self._asked = asked
        self._set()

    def follow(self, pressures: Sequence[EnginePressure]) -> None:
        """Change the window by one look at the engines."""
        if self._config is None:
            return
        places = self.places
        self._window = next_window(self._window, places.taken, places.waiting, pressures, self._config, self._most)
        self._looks.append(_Look(self._window, places.taken, tuple(pressures)))
        self._set()

    def take_figures(self) -> dict[str, float]:
        """What was seen since this was last asked, by its names in the lake's `metrics`; nothing where no engine was looked at.

        The means of window and trajectories under way over the looks, the fullest cache, the longest standing queue, all preemptions.
        """
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
