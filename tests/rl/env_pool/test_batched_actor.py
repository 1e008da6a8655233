"""Calls that a client carries to a real actor: many at once, each with its own end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from rl.env_pool.batched_actor import BatchedActor, BatchedActorClient, CallFailed, NotPicklable
from rl.ray_runtime import RayConfig, RayRuntime

pytestmark = pytest.mark.engine


class Awkward(Exception):
    """An exception that can be written and not read."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("awkward")


class Clerk(BatchedActor):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.messages = 0

    async def run_calls(self, calls: Any) -> None:
        self.messages += 1
        await super().run_calls(calls)

    async def double(self, number: int, seconds: float = 0.0) -> int:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.told.append(f"cancelled {number}")
            raise
        return 2 * number

    async def note(self, text: str) -> None:
        self.told.append(text)

    async def read(self) -> tuple[list[str], int]:
        return self.told, self.messages

    async def go_wrong(self, how: str) -> Any:
        if how == "plain":
            raise ValueError("no")
        if how == "awkward":
            raise Awkward(1, 2)
        return threading.Lock()


@pytest.fixture(scope="module")
def runtime() -> Iterator[RayRuntime]:
    started = RayRuntime(RayConfig(), cpus=2)
    yield started
    started.close()


@pytest.fixture
def client(runtime: RayRuntime) -> BatchedActorClient:
    return BatchedActorClient(ray.remote(Clerk).options(num_cpus=0.1, max_concurrency=1000).remote())


async def test_a_thousand_calls_are_answered_each_by_its_own_in_few_messages(client: BatchedActorClient) -> None:
    numbers = await asyncio.gather(*(client.call("double", number) for number in range(1000)))
    assert numbers == [2 * number for number in range(1000)]
    assert (await client.call("read"))[1] < 20


async def test_nobody_waits_for_the_slow_and_the_failing(client: BatchedActorClient) -> None:
    slow = asyncio.ensure_future(client.call("double", 1, 60.0))
    failing = [client.call("go_wrong", how) for how in ("plain", "awkward", "lock")]
    plain, awkward, lock = await asyncio.gather(*failing, return_exceptions=True)
    assert isinstance(plain, CallFailed) and repr(plain.cause) == "ValueError('no')"
    assert isinstance(awkward, CallFailed) and isinstance(awkward.cause, NotPicklable)
    assert str(awkward.cause) == "Awkward: awkward cannot be sent to another process"
    assert isinstance(lock, CallFailed) and str(lock.cause) == "a lock cannot be sent to another process"
    assert await client.call("double", 4) == 8
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    client.send("note", "goodbye")
    while (await client.call("read"))[0] != ["cancelled 1", "goodbye"]:
        await asyncio.sleep(0.01)


def test_a_later_event_loop_takes_over_without_losing_an_answer(client: BatchedActorClient) -> None:
    async def leave_one_waiting() -> None:
        waiting = asyncio.ensure_future(client.call("double", 1, 0.3))
        assert await client.call("double", 2) == 4
        assert not waiting.done()

    asyncio.run(leave_one_waiting())
    for number in range(20):
        assert asyncio.run(client.call("double", number, 0.02)) == 2 * number


async def test_whoever_waits_for_an_actor_that_is_killed_is_told(client: BatchedActorClient) -> None:
    waiting = [asyncio.ensure_future(client.call("double", number, 60.0)) for number in range(3)]
    assert await client.call("double", 2) == 4
    ray.kill(client._actor)
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in found] == [type(found[0])] * 3
    assert all(isinstance(error, RayActorError) for error in found)
    with pytest.raises(RayActorError):
        await client.call("double", 1)
