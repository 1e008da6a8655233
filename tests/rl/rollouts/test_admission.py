"""Concurrency that follows the engines: the rule, what is kept of an engine's steps, and places that follow both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from rl.engines.base import EnginePressure, PressureGauge
from rl.engines.config import PressureConfig
from rl.rollouts.admission import Admission, is_pressed, next_window

CONFIG = PressureConfig(floor=4, increase=2, decrease=0.5, kv_usage=0.8, queue=1)
CALM = EnginePressure(steps=100, kv_usage=0.5)
FULL = EnginePressure(steps=100, kv_usage=0.81)
SILENT = EnginePressure()


def after(window: int, taken: int, waiting: int, *pressures: EnginePressure, most: int = 100) -> int:
    return next_window(window, taken, waiting, pressures, CONFIG, most)


def test_the_window_grows_by_a_number_where_it_is_full_and_somebody_waits() -> None:
    assert after(10, 10, 5, CALM) == 12
    assert after(10, 10, 0, CALM) == 10, "nobody wants more"
    assert after(10, 9, 5, CALM) == 10, "somebody asked for fewer, or they are just coming in"
    assert after(99, 99, 5, CALM) == 100 and after(100, 100, 5, CALM) == 100, "never more than are configured"


def test_the_window_shrinks_to_a_share_of_what_is_under_way_and_not_below_the_floor() -> None:
    assert after(20, 20, 5, FULL) == 10
    assert after(50, 20, 0, FULL) == 10, "places that nobody has are no help against pressure"
    assert after(5, 5, 5, FULL) == 4
    assert after(3, 3, 5, FULL, most=3) == 3, "a floor above what is configured is what is configured"


@pytest.mark.parametrize(
    ("pressure", "pressed"),
    [
        (EnginePressure(9, kv_usage=0.8), False),
        (EnginePressure(9, kv_usage=0.801), True),
        (EnginePressure(9, queue=1), False),
        (EnginePressure(9, queue=2), True),
        (EnginePressure(9, preempted=1), True),
    ],
)
def test_a_full_cache_a_standing_queue_and_a_preemption_are_pressure(pressure: EnginePressure, pressed: bool) -> None:
    assert is_pressed(pressure, CONFIG) == pressed


def test_of_an_engines_steps_the_fullest_the_shortest_queue_and_all_preemptions_are_kept() -> None:
    gauge = PressureGauge()
    assert gauge.take() == SILENT
    for kv_usage, waiting, preempted in ((0.2, 7, 0), (0.9, 3, 2), (0.4, 5, 1)):
        gauge.see(kv_usage, waiting, preempted)
    assert gauge.take() == EnginePressure(3, 0.9, 3, 3)
    gauge.see(0.1, 4, 0)
    assert gauge.take() == EnginePressure(1, 0.1, 4, 0), "from the last time that somebody asked"


@dataclass
class Engine:
    """One that has room for so many trajectories."""

    room: int

    def pressure(self, under_way: int) -> EnginePressure:
        return EnginePressure(10, min(1.0, 0.8 * under_way / self.room), max(0, under_way - self.room))


async def visit(admission: Admission, engine: Engine, looks: int, asked: dict[int, int | None] | None = None) -> list[tuple[int, int]]:
    """A thousand trajectories that all last for one look: window and those under way at each look."""
    seen: list[tuple[int, int]] = []
    doors: list[asyncio.Event] = []

    async def stay() -> None:
        async with admission.places:
            doors.append(asyncio.Event())
            await doors[-1].wait()

    visitors = [asyncio.create_task(stay()) for _ in range(1000)]
    for look in range(looks):
        if look in (asked or {}):
            admission.admit((asked or {})[look])
        for _ in range(5):
            await asyncio.sleep(0)
        taken = admission.places.taken
        admission.follow([engine.pressure(taken)])
        seen.append((admission.places.limit, taken))
        ended, doors[:] = list(doors), []
        for door in ended:
            door.set()
        for _ in range(5):
            await asyncio.sleep(0)
    for visitor in visitors:
        visitor.cancel()
    await asyncio.gather(*visitors, return_exceptions=True)
    return seen


def test_as_many_come_in_as_the_engine_has_room_for() -> None:
    config = PressureConfig(floor=4, increase=2, decrease=0.7, kv_usage=0.8)
    seen = asyncio.run(visit(Admission(256, config), Engine(room=20), 40))
    assert seen[0] == (6, 4), "it begins at the floor"
    later = [taken for _, taken in seen[10:]]
    assert max(later) <= 24 and min(later) >= 14, "around what there is room for"
    assert sum(later) / len(later) > 17


def test_what_somebody_asked_for_bounds_the_window_and_leaves_it_what_it_was() -> None:
    config = PressureConfig(floor=4, increase=2, decrease=0.7, kv_usage=0.8)
    seen = asyncio.run(visit(Admission(256, config), Engine(room=1000), 12, {4: 3, 6: 0, 8: None}))
    assert [taken for _, taken in seen] == [4, 6, 8, 10, 12, 3, 3, 0, 14, 16, 18, 20]
