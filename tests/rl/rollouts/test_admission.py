"""Concurrency that follows the engines, the places that trajectories take, and the stream that they come in."""

from __future__ import annotations

import asyncio
import threading
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


def test_the_window_grows_when_it_is_full_and_requests_wait() -> None:
    assert after(10, 10, 5, CALM) == 12
    assert after(10, 10, 0, CALM) == 10, "no request waits"
    assert after(10, 9, 5, CALM) == 10, "the window is not full"
    assert after(99, 99, 5, CALM) == 100 and after(100, 100, 5, CALM) == 100, "never more than are configured"


def test_the_window_shrinks_under_pressure_down_to_the_floor() -> None:
    assert after(20, 20, 5, FULL) == 10
    assert after(50, 20, 0, FULL) == 10, "unused places do not count"
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
def test_a_full_cache_a_queue_and_a_preemption_are_pressure(pressure: EnginePressure, pressed: bool) -> None:
    assert is_pressed(pressure, CONFIG) == pressed


def test_the_gauge_aggregates_an_engines_steps() -> None:
    gauge = PressureGauge()
    assert gauge.take() == SILENT
    for kv_usage, waiting, preempted in ((0.2, 7, 0), (0.9, 3, 2), (0.4, 5, 1)):
        gauge.see(kv_usage, waiting, preempted)
    assert gauge.take() == EnginePressure(3, 0.9, 3, 3)
    gauge.see(0.1, 4, 0)
    assert gauge.take() == EnginePressure(1, 0.1, 4, 0), "since the last call"


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


def test_admission_follows_the_room_of_the_engine() -> None:
    config = PressureConfig(floor=4, increase=2, decrease=0.7, kv_usage=0.8)
    seen = asyncio.run(visit(Admission(256, config), Engine(room=20), 40))
    assert seen[0] == (6, 4), "it begins at the floor"
    later = [taken for _, taken in seen[10:]]
    assert max(later) <= 24 and min(later) >= 14, "around what there is room for"
    assert sum(later) / len(later) > 17


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


def test_a_lower_limit_keeps_running_tasks_and_a_higher_one_admits_waiting_ones() -> None:
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


def test_a_task_cancelled_while_waiting_yields_its_place() -> None:
    async def go() -> None:
        them = await opened(1, 3)
        them.tasks[1].cancel()
        await settle()
        assert them.places.waiting == 1
        await them.go(0)
        assert them.inside == [2] and them.places.taken == 1

    asyncio.run(go())


def test_a_task_cancelled_on_admission_yields_its_place() -> None:
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


def test_a_defect_ends_the_stream_and_is_raised(loop: asyncio.AbstractEventLoop) -> None:
    stream = TrajectoryStream(loop, requests(0, -1, HOUR), run)
    with pytest.raises(ExceptionGroup) as raised:
        list(stream)
    assert raised.group_contains(ZeroDivisionError)


def test_cancelling_wakes_the_reader(loop: asyncio.AbstractEventLoop) -> None:
    stream = TrajectoryStream(loop, requests(HOUR), run)
    threading.Timer(0.1, stream.cancel).start()
    assert list(stream) == []
