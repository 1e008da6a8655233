"""Streams of the pool over engines that are not there: tokens as they come, deaths in their middle, and callers that leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rl.engines.base import EngineDead, EngineFault, Generation, GenerationStop, Sampling
from rl.engines.config import EngineConfig
from rl.engines.pool import EnginePool


class Scripted:
    """Stands for an engine's actor: samples `ids` one by one, and dies after `lives` of them."""

    older = leaving = False
    load = 0
    died = 3

    def __init__(self, *ids: int, lives: int = 99) -> None:
        self.ids, self.lives, self.sampled_ids = ids, lives, list[int]()
        self.trajectories: set[str] = set()
        self.cancelled = self.killed = False

    async def generate(self, request_id: str, prompt_ids: Any, sampling: Sampling, images: Any) -> Generation:
        assert sampling.streamed
        try:
            for token in self.ids:
                await asyncio.sleep(0.01)
                if len(self.sampled_ids) == self.lives:
                    raise EngineDead("it died")
                self.sampled_ids.append(token)
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return Generation(self.ids, (-0.5,) * len(self.ids), GenerationStop.STOP, (0,) * len(self.ids))

    async def sampled(self, request_id: str, seen: int) -> tuple[int, ...]:
        while len(self.sampled_ids) <= seen:
            await asyncio.sleep(0.001)
        return tuple(self.sampled_ids[seen:])

    def kill(self) -> None:
        self.killed = True


def pool_of(*engines: Scripted) -> EnginePool:
    pool = EnginePool(EngineConfig(), "nowhere", 0)
    pool._replicas = list(engines)  # type: ignore[arg-type]
    return pool


async def read(pool: EnginePool) -> tuple[list[tuple[int, ...]], Generation]:
    *parts, last = [part async for part in pool.stream("t", (1, 2), Sampling())]
    assert isinstance(last, Generation)
    return [part for part in parts if not isinstance(part, Generation)], last


async def test_tokens_come_as_they_are_sampled() -> None:
    parts, last = await read(pool_of(Scripted(5, 6, 7, 8)))
    assert len(parts) > 2 and last.token_ids[: sum(map(len, parts))] == tuple(token for part in parts for token in part)
    assert last.token_ids == (5, 6, 7, 8)


async def test_a_death_is_invisible_if_the_other_engine_continues_equally_and_else_a_fault() -> None:
    parts, last = await read(pool_of(Scripted(5, 6, 7, 8, lives=2), Scripted(5, 6, 7, 8)))
    assert last.token_ids == (5, 6, 7, 8) and [token for part in parts for token in part] == list(last.token_ids[: sum(map(len, parts))])
    with pytest.raises(EngineFault, match="differently"):
        await read(pool_of(Scripted(5, 6, 7, 8, lives=2), Scripted(5, 9, 9)))
    with pytest.raises(EngineFault, match="no engine is left"):
        await read(pool_of(Scripted(5, 6, 7, 8, lives=2)))


async def test_a_caller_that_leaves_cancels_the_request() -> None:
    engine = Scripted(*range(50))
    stream = pool_of(engine).stream("t", (1,), Sampling())
    assert await anext(stream) == (0,)
    await stream.aclose()
    await asyncio.sleep(0)
    assert engine.cancelled
