"""The stream of trajectories itself, over an event loop in another thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.rollout import TrajectoryStream
from warehouse.records import StopReason, Task, Trajectory

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
