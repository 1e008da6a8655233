"""What synthesis needs of a policy's engines: one continuation at a time, in the event loop that the engines live in."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from rl.engines.base import Generation, Sampling

T = TypeVar("T")


class GenerationPool(Protocol):
    """The part of an `EnginePool` that is used here."""

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation: ...

    def release(self, request_id: str) -> None: ...


class AsyncRunner(Protocol):
    """Whoever runs the event loop that a pool lives in: a `BackgroundLoop`, or `Rollouts`."""

    def wait(self, work: Coroutine[Any, Any, T]) -> T: ...
