"""An environment worker's last calls, and the circuit breaker."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rl.env_pool.circuit_breaker import CircuitBreaker, CircuitOpen, environment
from rl.env_pool.worker import EnvironmentWorker
from rl.envs.base import EnvironmentFault, Resources, Step
from rl.envs.config import EnvironmentKindConfig
from rl.envs.tool_use import StatefulEnvironment
from rl.renderers.base import Action
from rl.retrieval.indexes import build_indexes
from rl.tools import tool
from warehouse.records import Task

FAULT = "error: it broke"


def breaker_after(outcomes: str) -> CircuitBreaker:
    """A breaker that saw an environment fail at each `x`."""
    breaker = CircuitBreaker(window=4, max_share=0.5)
    for outcome in outcomes:
        breaker.record(environment("maze"), FAULT if outcome == "x" else None)
    return breaker


@pytest.mark.parametrize("outcomes", ["", "xxx", "..xx", "xxxx..", "x.x.x.x."])
def test_a_window_that_is_not_full_or_half_healthy_is_accepted(outcomes: str) -> None:
    breaker_after(outcomes).check()


@pytest.mark.parametrize("outcomes", [".xxx", "....xxx", "xxxx"])
def test_too_many_faults_open_the_breaker(outcomes: str) -> None:
    with pytest.raises(CircuitOpen, match=f"'maze' failed in {outcomes[-4:].count('x')} of its last 4 .*it broke"):
        breaker_after(outcomes).check()


class Winning(StatefulEnvironment):
    """Pays at each step once it is won, as a server may, and takes its time to close."""

    def __init__(self) -> None:
        super().__init__({"act": tool(self.act)})
        self._won = False

    async def act(self, move: str) -> str:
        """Make a move.

        Args:
            move: `win` wins.
        """
        self._won |= move == "win"
        return move

    async def close(self) -> None:
        """Say goodbye to the server."""
        await asyncio.sleep(0.05)
        await super().close()

    def _complete(self, step: Step) -> Step:
        return replace(step, reward=float(self._won), done=step.done or self._won)


def create(resources: Resources) -> Winning:
    """The environment of one trajectory."""
    return Winning()


@pytest.mark.parametrize("late", [0.0, 0.02])
async def test_calls_concurrent_with_the_last_one_are_refused(late: float) -> None:
    """Whether they come with it or while the environment is being closed: before its answer they would count as faults."""
    worker = EnvironmentWorker(f"{__name__}:create", EnvironmentKindConfig(), build_indexes(()))
    await worker.reset("t", Task("k", "winning", "?", ("x",)), 1)
    answered: list[Step | str] = []

    async def call(move: str, seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)
        try:
            answered.append(await worker.step("t", Action("act", f'{{"move": "{move}"}}')))
        except EnvironmentFault as fault:
            answered.append(fault.message)

    await asyncio.gather(call("look"), call("win"), call("look", late), call("look", late))
    steps = [each for each in answered if isinstance(each, Step)]
    assert [(step.reward, step.done) for step in steps] == [(0.0, False), (1.0, True)]
    assert answered[:2] == steps and all("ended" in str(each) for each in answered[2:])
    assert len(answered) == 4
