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


def test_so_many_are_taken_and_who_waits_comes_in_by_turn() -> None:
    async def go() -> None:
        them = await opened(2, 4)
        assert (them.inside, them.places.taken, them.places.waiting) == ([0, 1], 2, 2)
        await them.go(1)
        assert them.inside == [0, 2] and them.places.waiting == 1
        await them.go(0)
        assert them.inside == [2, 3] and them.places.waiting == 0

    asyncio.run(go())


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


def test_none_may_enter_where_there_is_no_place_and_the_next_to_come_waits_behind() -> None:
    async def go() -> None:
        them = await opened(0, 2)
        assert them.inside == [] and them.places.waiting == 2
        them.places.limit = 1
        await them.come()
        assert them.inside == [0] and them.places.waiting == 2
        await them.go(0)
        assert them.inside == [1], "in the order in which they came"

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
