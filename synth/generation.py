"""Sample from a policy's engines outside rollouts, in the engines' event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rl.engines.base import EngineFault, Generation, Sampling

T = TypeVar("T")
SampleRequest = tuple[str, Sequence[int], Sampling]
"""Request id, prompt token ids and sampling parameters."""


class GenerationPool(Protocol):
    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation: ...

    def release(self, request_id: str) -> None: ...


class AsyncRunner(Protocol):
    """Runs a pool's event loop (`BackgroundLoop` or `Rollouts`)."""

    def wait(self, work: Coroutine[Any, Any, T]) -> T: ...


@dataclass(frozen=True, slots=True)
class PolicySampler:
    """Samples from `pool` in the event loop of `loop`, at most `concurrency` requests at a time."""

    pool: GenerationPool
    loop: AsyncRunner
    concurrency: int = 64

    def sample(self, requests: Sequence[SampleRequest]) -> list[Generation | EngineFault]:
        """One generation per request, or the engine's fault."""
        return self.loop.wait(self._sample(requests))

    async def _sample(self, requests: Sequence[SampleRequest]) -> list[Generation | EngineFault]:
        places = asyncio.Semaphore(self.concurrency)

        async def one(request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation | EngineFault:
            async with places:
                try:
                    return await self.pool.generate(request_id, prompt_ids, sampling)
                except EngineFault as fault:
                    return fault
                finally:
                    self.pool.release(request_id)

        return list(await asyncio.gather(*(one(*request) for request in requests)))
