"""Trajectories as they finish: what a learner reads that updates while the rest is still being sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue

from rl.hosting.health import UnhealthyError
from rl.rollouts.agent_loop import RolloutRequest
from warehouse.records import Trajectory


class TrajectoryStream(Iterator[Trajectory]):
    """An iterator over the trajectories of some requests, in the order in which they end.

    They run in `loop`, the event loop of another thread, whether anybody reads or not. What is raised for one of them, an
    `UnhealthyError` or a defect since faults are outcomes, ends the others and is raised here.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Sequence[RolloutRequest],
        run: Callable[[RolloutRequest], Awaitable[Trajectory]],
    ) -> None:
        self._loop = loop
        self._run = run
        self._left = 0
        self._ended: SimpleQueue[Trajectory | BaseException | None] = SimpleQueue()
        self._work: list[Future[None]] = []
        self.extend(requests)

    def extend(self, requests: Sequence[RolloutRequest]) -> None:
        """Begin trajectories for further requests."""
        self._left += len(requests)
        self._work = [work for work in self._work if not work.done()]
        self._work.append(asyncio.run_coroutine_threadsafe(self._run_all(requests), self._loop))

    @property
    def ready(self) -> bool:
        """Whether the next can be read without waiting."""
        return not self._ended.empty()

    def __len__(self) -> int:
        """Trajectories that have not been read yet."""
        return self._left

    def __next__(self) -> Trajectory:
        if not self._left:
            raise StopIteration
        ended = self._ended.get()
        if ended is None:
            raise StopIteration
        if isinstance(ended, BaseException):
            self._left = 0
            raise ended
        self._left -= 1
        return ended

    def cancel(self) -> None:
        """Stop those under way and drop what was not read; whoever is reading gets no more. Does nothing where all have been read."""
        self._left = 0
        for work in self._work:
            work.cancel()
        self._ended.put(None)

    async def _run_all(self, requests: Sequence[RolloutRequest]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(self._run_one(request))
        except BaseExceptionGroup as defects:
            unhealthy = defects.subgroup(UnhealthyError)
            self._ended.put(defects if unhealthy is None else unhealthy.exceptions[0])

    async def _run_one(self, request: RolloutRequest) -> None:
        self._ended.put(await self._run(request))
