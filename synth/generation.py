"""The parts of a policy's engine pool and event loop that synthesis uses."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from rl.engines.base import Generation, Sampling

T = TypeVar("T")


class GenerationPool(Protocol):
    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation: ...

    def release(self, request_id: str) -> None: ...


class AsyncRunner(Protocol):
    """Runs the event loop of a pool: a `BackgroundLoop` or `Rollouts`."""

    def wait(self, work: Coroutine[Any, Any, T]) -> T: ...
