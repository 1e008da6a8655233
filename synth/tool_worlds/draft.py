"""A task in the making: a world that its calls are carried out in, and what they brought.

A goal is one thing to be done. It looks at the world through the world's own tools, as a policy will have to, and so its calls are a
solution that works. What one goal gives (a booking, a meeting) another may need: goals are joined where the types fit, as AutoForge
joins tools by their inputs and outputs (arXiv 2512.22857).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from rl.environments.tool_world.world import World

T = TypeVar("T")


class Unfit(Exception):
    """The goal cannot be set in this world, or not with one solution alone."""


@dataclass(slots=True)
class Draft:
    """The world as the goals so far left it, and the record of how they did."""

    world: World
    rng: Random
    calls: list[dict[str, Any]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)
    """Type → the newest thing of that type that a goal gave."""
    answer: str | None = None
    touched: set[str] = field(default_factory=set)
    """Names that a goal was about: the next is about others, unless it needs what was given."""

    def call(self, tool: str, **arguments: Any) -> Any:
        """Carry out a call in the world, note it, and read what it returns."""
        self.calls.append({"tool": tool, "arguments": arguments})
        return json.loads(self.world.call(tool, arguments))

    def pick(self, names: Iterable[str]) -> str:
        """One of the names that no goal was about yet.

        Raises:
            Unfit: where there is none.
        """
        free = sorted(set(names) - self.touched)
        if not free:
            raise Unfit
        picked = self.rng.choice(free)
        self.touched.add(picked)
        return picked


@dataclass(frozen=True, slots=True)
class Goal:
    """One thing to be done. `act` does it and puts it into words; `needs` and `gives` are types of things."""

    name: str
    act: Callable[[Draft], str]
    needs: str | None = None
    gives: str | None = None
    asks: bool = False
    """Whether it asks for an answer and changes nothing; it then stands alone."""


def only_best(records: Sequence[T], value: Callable[[T], float]) -> T:
    """The record with the lowest value.

    Raises:
        Unfit: where there is none, or several share it.
    """
    ranked = sorted(records, key=value)
    if not ranked or (len(ranked) > 1 and value(ranked[0]) == value(ranked[1])):
        raise Unfit
    return ranked[0]
