"""Places whose number changes while they are taken."""

from __future__ import annotations

import asyncio

from rl.rollouts.admission import Places


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
