"""Runs of a policy, turn by turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from warehouse.records import Outcome, StopReason, Trajectory, Turn


def turn_of(index: int, tool: str, arguments: str, seen: str = "", think: str = "", **changed: Any) -> Turn:
    """A call in tags, and what it brought."""
    text = (f"<think> {think}</think>" if think else "") + f"<{tool}> {arguments}</{tool}>"
    return replace(Turn(index, (), (), text, tool, arguments, (), seen, None, "ok", 0.0, 0), **changed)


def run_of(name: str, task: str, turns: Iterable[Turn], outcome: Outcome | None = Outcome.SUCCESS, **changed: Any) -> Trajectory:
    """A run that ended with an answer, of a policy in reinforcement learning."""
    made = Trajectory(name, task, "p", "rl", 4, (1,), tuple(turns), StopReason.ANSWERED, outcome, None, 0, None, None)
    return replace(made, **changed)
