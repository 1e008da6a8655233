"""Concurrency that follows the engines, the places that trajectories take, and the stream that they come in."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from rl.engines.base import EnginePressure, PressureGauge
from rl.engines.config import PressureConfig
from rl.rollouts.admission import Admission, Places, is_pressed, next_window
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.rollout import TrajectoryStream
from warehouse.records import StopReason, Task, Trajectory

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


class Visitors:
    """Tasks that take a place, and keep it until they are let go."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.inside: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.doors: list[asyncio.Event] = []

    async def come(self, count: int = 1) -> None:
        for _ in range(count):
            self.doors.append(asyncio.Event())
            self.tasks.append(asyncio.create_task(self._stay(len(self.tasks))))
        await settle()

    async def go(self, number: int) -> None:
        self.doors[number].set()
        await settle()

    async def _stay(self, number: int) -> None:
        async with self.places:
            self.inside.append(number)
            await self.doors[number].wait()
            self.inside.remove(number)


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def opened(limit: int, visitors: int) -> Visitors:
    them = Visitors(Places(limit))
    await them.come(visitors)
    return them


def test_a_lower_bound_throws_nobody_out_and_a_higher_one_lets_in_who_waits() -> None:
    async def go() -> None:
        them = await opened(3, 5)
        them.places.limit = 1
        await settle()
        assert them.inside == [0, 1, 2]
        await them.go(0)
        await them.go(1)
        assert them.inside == [2], "two have left, and one place is taken"
        them.places.limit = 3
        await settle()
        assert them.inside == [2, 3, 4]

    asyncio.run(go())


def test_one_that_is_cancelled_while_it_waits_leaves_its_place_to_the_next() -> None:
    async def go() -> None:
        them = await opened(1, 3)
        them.tasks[1].cancel()
        await settle()
        assert them.places.waiting == 1
        await them.go(0)
        assert them.inside == [2] and them.places.taken == 1

    asyncio.run(go())


def test_one_that_is_cancelled_in_the_moment_in_which_its_turn_comes_gives_the_place_on() -> None:
    async def go() -> None:
        them = await opened(0, 2)
        them.places.limit = 1
        them.tasks[0].cancel()
        await settle()
        assert them.inside == [1] and them.places.taken == 1
        await them.go(1)
        assert them.places.taken == 0

    asyncio.run(go())


TASK = Task("k", "search", "?", ())
DONE = Trajectory("", "k", "p", "rl", 1, (), (), StopReason.ANSWERED, None, None, 0, None, None)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    asyncio.run_coroutine_threadsafe(settled(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def settled() -> None:
    """Every task of the loop has ended."""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)


HOUR = 3_600_000
"""Milliseconds that no test here waits for."""


def requests(*milliseconds: int) -> list[RolloutRequest]:
    return [RolloutRequest(f"t{number}", TASK, "p", 1, seed=wait) for number, wait in enumerate(milliseconds)]


async def run(request: RolloutRequest) -> Trajectory:
    """Takes as many milliseconds as the seed says; a defect where it says less than none."""
    if request.seed < 0:
        raise ZeroDivisionError("a defect")
    await asyncio.sleep(request.seed / 1000)
    return replace(DONE, id=request.trajectory_id)


def test_the_quick_ones_come_first_and_none_waits_for_the_slowest(loop: asyncio.AbstractEventLoop) -> None:
    stream = TrajectoryStream(loop, requests(HOUR, 20, 200), run)
    assert len(stream) == 3
    assert [next(stream).id, next(stream).id] == ["t1", "t2"]
    assert len(stream) == 1
    stream.cancel()
    assert list(stream) == []


def test_a_stream_can_be_given_further_requests_and_says_whether_one_has_ended(loop: asyncio.AbstractEventLoop) -> None:
    stream = TrajectoryStream(loop, requests(10), run)
    assert next(stream).id == "t0" and not stream.ready and list(stream) == []
    stream.extend([replace(each, trajectory_id=f"more-{each.trajectory_id}") for each in requests(HOUR, 10)])
    assert len(stream) == 2 and next(stream).id == "more-t1" and not stream.ready
    stream.extend(requests(1))
    deadline = time.monotonic() + 120
    while not stream.ready and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stream.ready and next(stream).id == "t0" and len(stream) == 1
    stream.cancel()
    assert list(stream) == []


def test_a_defect_ends_the_stream_and_is_raised(loop: asyncio.AbstractEventLoop) -> None:
    stream = TrajectoryStream(loop, requests(0, -1, HOUR), run)
    with pytest.raises(ExceptionGroup) as raised:
        list(stream)
    assert raised.group_contains(ZeroDivisionError)


def test_cancelling_wakes_whoever_is_reading(loop: asyncio.AbstractEventLoop) -> None:
    stream = TrajectoryStream(loop, requests(HOUR), run)
    threading.Timer(0.1, stream.cancel).start()
    assert list(stream) == []
