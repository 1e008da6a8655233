"""The agent loop in lockstep: all trajectories generate, all act, and nobody goes on before the slowest has; a loop to compare ours with.

So work Search-R1's and AgentGym-RL's rollouts. A rollout names it as `loop = "benchmarks.lockstep:Lockstep"`, and may hold no more
trajectories than run side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rl.engines.base import Generation, Generator, Sampling
from rl.renderers.base import Dialect
from rl.rollouts.agent_loop import AgentLoop, EnvironmentHandle, RolloutRequest
from rl.rollouts.config import Limits
from warehouse import Trajectory


class Lockstep:
    """Our agent loop, with everybody held before and after each generation until all have come so far."""

    def __init__(self, engine: Generator, dialect: Dialect, limits: Limits) -> None:
        self._barrier = _Barrier()
        self._loop = AgentLoop(_Held(engine, self._barrier), dialect, limits)

    async def run(self, request: RolloutRequest, environment: EnvironmentHandle) -> Trajectory:
        """Run one trajectory to its end, in step with the others."""
        self._barrier.enter()
        try:
            return await self._loop.run(request, environment)
        finally:
            self._barrier.leave()


class _Held:
    """An engine that begins when all want it, and answers when it has all answers."""

    def __init__(self, engine: Generator, barrier: _Barrier) -> None:
        self._engine, self._barrier = engine, barrier

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        await self._barrier.wait()
        generation = await self._engine.generate(request_id, prompt_ids, sampling)
        await self._barrier.wait()
        return generation


class _Barrier:
    """Lets all who are inside go on when each of them waits."""

    def __init__(self) -> None:
        self._inside = self._waiting = 0
        self._gate = asyncio.Event()

    def enter(self) -> None:
        """One more to wait for."""
        self._inside += 1

    def leave(self) -> None:
        """One fewer."""
        self._inside -= 1
        self._open_if_all()

    async def wait(self) -> None:
        """Until everybody who is inside waits."""
        gate = self._gate
        self._waiting += 1
        self._open_if_all()
        await gate.wait()

    def _open_if_all(self) -> None:
        if self._waiting and self._waiting == self._inside:
            self._waiting = 0
            self._gate.set()
            self._gate = asyncio.Event()
