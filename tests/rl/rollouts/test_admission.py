"""Concurrency that follows the engines, the places that trajectories take, and the stream that they come in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace

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


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Visitors:
    """Tasks that take a place, and keep it until they are let go."""

    def __init__(self, places: Places, count: int) -> None:
        self.places, self.inside = places, list[int]()
        self.doors = [asyncio.Event() for _ in range(count)]
        self.tasks = [asyncio.create_task(self._stay(number)) for number in range(count)]

    async def go(self, *numbers: int) -> None:
        for number in numbers:
            self.doors[number].set()
        await settle()

    async def _stay(self, number: int) -> None:
        async with self.places:
            self.inside.append(number)
            await self.doors[number].wait()
            self.inside.remove(number)


async def test_admission_follows_the_room_of_the_engine() -> None:
    """A thousand trajectories that all last from one look to the next, and an engine that has room for twenty."""
    admission = Admission(256, PressureConfig(floor=4, increase=2, decrease=0.7, kv_usage=0.8))
    them, seen = Visitors(admission.places, 1000), list[int]()
    for _ in range(40):
        await settle()
        seen.append(admission.places.taken)
        admission.follow([EnginePressure(10, min(1.0, 0.8 * seen[-1] / 20), max(0, seen[-1] - 20))])
        await them.go(*them.inside)
    for task in them.tasks:
        task.cancel()
    assert seen[0] == 4, "it begins at the floor"
    assert max(seen[10:]) <= 24 and min(seen[10:]) >= 14, "around what there is room for"
    assert sum(seen[10:]) / 30 > 17


async def test_a_lower_limit_keeps_running_tasks_and_a_higher_one_admits_waiting_ones() -> None:
    them = Visitors(Places(3), 5)
    await settle()
    them.places.limit = 1
    await settle()
    assert them.inside == [0, 1, 2]
    await them.go(0, 1)
    assert them.inside == [2], "two have left, and one place is taken"
    them.places.limit = 3
    await settle()
    assert them.inside == [2, 3, 4]
    await them.go(2, 3, 4)


async def test_a_task_cancelled_while_waiting_or_on_admission_yields_its_place() -> None:
    them = Visitors(Places(1), 5)
    await settle()
    them.tasks[1].cancel()
    await settle()
    assert them.places.waiting == 3
    await them.go(0)
    assert them.inside == [2] and them.places.taken == 1
    them.places.limit = 2
    them.tasks[3].cancel()  # it is admitted, and has not run since
    await settle()
    assert them.inside == [2, 4] and them.places.taken == 2
    await them.go(2, 4)
    assert them.places.taken == 0


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
