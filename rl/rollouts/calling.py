"""The calls of one turn: all of them run at once, and each leaves a record.

An answer is given after the other calls of its turn. A call that finds the trajectory ended by another is recorded as not run; one that
does not come back before the trajectory's time is over has no outcome; a fault of one makes the trajectory invalid.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rl.environment import EnvironmentFault, Step, ToolOutcome
from rl.renderers.base import Action, ActionTurn, ParseError, Result
from warehouse.records import ANSWER, NOT_RUN, Call

FAULT = "fault"
"""The outcome of a call that its environment failed at."""


class Stepping(Protocol):
    """The part of an environment that calls go to; it raises `EnvironmentFault` and nothing else."""

    async def step(self, action: Action) -> Step: ...


@dataclass(frozen=True, slots=True)
class Acted:
    """What came of a turn: its calls, what the policy is to see, whether the trajectory is done, and what ended it otherwise."""

    calls: tuple[Call, ...]
    results: tuple[Result, ...]
    reward: float | None = None
    done: bool = False
    fault: str | None = None
    out_of_time: bool = False

    @property
    def outcome(self) -> str | None:
        """That of the first call; where there is none, the action could not be read."""
        return self.calls[0].outcome if self.calls else ToolOutcome.UNPARSABLE.value


async def act(turn: ActionTurn | ParseError, environment: Stepping, tools: Sequence[str] | None, deadline: float | None) -> Acted:
    """Run the calls of `turn`, of `tools` alone where they are given, until the event loop's clock shows `deadline`."""
    if isinstance(turn, ParseError):
        return Acted((), (Result(f"Error: {turn.reason}"),))
    slots = [_Slot(action) for action in turn.calls]
    answers = [slot for slot in slots if slot.action.tool == ANSWER]
    first = [slot for slot in slots if slot.action.tool != ANSWER]
    in_time = await _run(first, environment, tools, deadline)
    if answers and in_time and not any(slot.ended for slot in slots):
        in_time = await _run(answers[:1], environment, None, deadline)
    return _acted(slots, out_of_time=not in_time)


@dataclass(slots=True)
class _Slot:
    """A call and what came of it: a step, a fault, or nothing yet."""

    action: Action
    begun: float | None = None
    seconds: float | None = None
    step: Step | None = None
    fault: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the trajectory is over by this call."""
        return self.fault is not None or (self.step is not None and self.step.done)

    async def run(self, environment: Stepping, tools: Sequence[str] | None) -> None:
        """Make the call."""
        self.begun = time.perf_counter()
        if tools is not None and self.action.tool not in tools:
            there = ", ".join(tools) or "none"
            self.step = Step(f"Error: there is no tool {self.action.tool}, only {there}", tool_outcome=ToolOutcome.ERROR)
            return
        try:
            self.step = await environment.step(self.action)
        except EnvironmentFault as fault:
            self.fault = str(fault)
        self.seconds = time.perf_counter() - self.begun

    def call(self, done: bool) -> Call:
        """The record; `done` says that a call of this turn ended the trajectory."""
        tool, arguments = self.action.tool, self.action.arguments
        if self.step is None:
            failed = self.fault if self.fault is not None and not done else None
            outcome = FAULT if failed is not None else NOT_RUN if self.begun is None or done else None
            return Call(tool, arguments, outcome, failed or "", self.seconds)
        step = self.step
        return Call(
            tool,
            arguments,
            outcome=None if step.tool_outcome is None else step.tool_outcome.value,
            observation=step.observation,
            latency_seconds=self.seconds if step.latency_seconds is None else step.latency_seconds,
            retries=step.retries,
            reward=step.reward,
            figures=dict(step.info.get("figures", {})),
        )


async def _run(slots: Sequence[_Slot], environment: Stepping, tools: Sequence[str] | None, deadline: float | None) -> bool:
    """Make the calls of `slots` at once; whether they came back in time."""
    if not slots:
        return True
    try:
        async with asyncio.timeout_at(deadline) as limit:
            await asyncio.gather(*(slot.run(environment, tools) for slot in slots))
    except TimeoutError:
        if not limit.expired():
            raise
        return False
    return True


def _acted(slots: Sequence[_Slot], out_of_time: bool) -> Acted:
    """A call that fails because another has ended the trajectory is no fault."""
    done = any(slot.step is not None and slot.step.done for slot in slots)
    calls = tuple(slot.call(done) for slot in slots)
    rewards = [call.reward for call in calls if call.reward is not None]
    return Acted(
        calls=calls,
        results=tuple(Result(slot.step.observation, slot.step.parts) for slot in slots if slot.step is not None),
        reward=sum(rewards) if rewards else None,
        done=done,
        fault=None if done else next((slot.fault for slot in slots if slot.fault is not None), None),
        out_of_time=out_of_time and not done,
    )
