"""The environment over a tool world: each trajectory has a world of its own, and is paid for the state that it leaves.

Every call's figures hold what the trajectory has changed so far, so that the final state can be judged from the record alone (see
`eval/state.py`), wherever the trajectory ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, wraps
from types import MethodType
from typing import Any

from pydantic import ConfigDict, Field, NonNegativeInt, ValidationError

from eval.answers import exact_match
from eval.state import EXTRA_WRITES, REFERENCE, STATE, StateVerdict, changes, compare
from rl.environment import EnvironmentFault, Observation, Resources, Step
from rl.environments.stateful import StatefulEnvironment
from rl.environments.tool_world.world import Tables, World
from rl.renderers.base import Action
from rl.tools import Tool, tool
from warehouse.errors import RequestError
from warehouse.plugins import Registry
from warehouse.records import ANSWER, Task
from warehouse.settings import Section, first_error

WORLDS = Registry(
    "tool world",
    {
        "bookings": "rl.environments.tool_world.bookings:Bookings",
        "inventory": "rl.environments.tool_world.inventory:Inventory",
        "agenda": "rl.environments.tool_world.agenda:Agenda",
    },
    "agent_flywheel.tool_worlds",
    "rollout.environments.kinds.tool_world.options.worlds",
)


class ToolWorldOptions(Section):
    """Options of the environment `tool_world`."""

    worlds: dict[str, str] = Field(default_factory=dict)
    """Worlds of one's own: the name of a domain, and the class as `module:Class` or `file.py:Class`."""


class NamedWorld(Section):
    """The world of a task, as its provenance names it; whatever else stands there is no world."""

    model_config = ConfigDict(strict=True)

    domain: str
    seed: NonNegativeInt
    size: int = Field(ge=1, le=10_000)
    digest: str


@dataclass(slots=True)
class _Attempt:
    """One attempt at a task: its world, what that was at the beginning, and the answer."""

    task: Task
    world: World
    before: Tables
    answer: str = ""

    def reward(self, verdict: StateVerdict) -> float:
        """1 where the task-relevant part of the state is reached, and the answer right where one is asked for."""
        read_only = not self.task.provenance[REFERENCE]
        right = not self.task.answers or exact_match(self.answer, self.task.answers)
        return float(verdict.reached and right and not (read_only and verdict.extra))


class ToolWorldEnvironment(StatefulEnvironment):
    """The world that a task names, with its tools."""

    def __init__(self, worlds: Mapping[str, str]) -> None:
        super().__init__({})
        self._worlds = worlds
        self._attempt: _Attempt | None = None

    async def reset(self, task: Task, seed: int) -> Observation:
        """Make the task's world; it follows from the task alone, so that all trajectories of a task begin alike."""
        named = _named_world(task)
        world = find_world(named.domain, self._worlds)(named.seed, named.size)
        if world.digest != named.digest:
            raise EnvironmentFault(f"the world of the task {task.key} is no longer what it was made for: make its tasks anew")
        self.tools = tools_of(world)
        self._attempt = _Attempt(task, world, deepcopy(world.state))
        return await super().reset(task, seed)

    async def step(self, action: Action) -> Step:
        """Call a tool, or answer and be paid."""
        if action.tool == ANSWER and self._attempt is not None:
            self._attempt.answer = action.arguments
        return await super().step(action)

    def _told(self, step: Step) -> Step:
        attempt = self._attempt
        if attempt is None:
            raise EnvironmentFault("a tool world was asked for a step before its reset")
        made = changes(attempt.before, attempt.world.state)
        verdict = compare(attempt.task.provenance[REFERENCE], made)
        figures = {**step.info.get("figures", {}), STATE: made, EXTRA_WRITES: len(verdict.extra)}
        return replace(step, info={**step.info, "figures": figures}, reward=attempt.reward(verdict) if step.done else step.reward)


def find_world(domain: str, own: Mapping[str, str]) -> type[World]:
    """The class of the worlds that a record calls `domain`; `own` are those of the configuration, by name.

    Raises:
        RequestError: where there is none, or where it is no class of worlds.
    """
    found = WORLDS.load_recorded(domain, own)
    if not (isinstance(found, type) and issubclass(found, World)):
        raise RequestError(f"the tool world {domain!r} is no subclass of World: correct it in {WORLDS.setting}.")
    return found


def _named_world(task: Task) -> NamedWorld:
    if not isinstance(task.provenance.get(REFERENCE), Mapping):
        raise EnvironmentFault(f"the task {task.key} names no tool world with the changes that it asks for")
    try:
        return NamedWorld.model_validate(task.provenance.get("world"))
    except ValidationError as error:
        raise EnvironmentFault(f"the task {task.key} names no tool world: {first_error(error)}") from error


def tools_of(world: World) -> dict[str, Tool]:
    """The tools of a world, by name."""
    return {name: tool(MethodType(_at_once(getattr(type(world), name)), world)) for name in world.tools}


def create(resources: Resources) -> ToolWorldEnvironment:
    """The environment of one trajectory."""
    return ToolWorldEnvironment(resources.read(ToolWorldOptions).worlds)


@cache
def _at_once(method: Callable[..., str]) -> Callable[..., Awaitable[str]]:
    """A plain method as a coroutine: it is over in microseconds, and needs no thread of its own. Made once, as its schema then is."""

    @wraps(method)
    async def call(world: World, **arguments: Any) -> str:
        return method(world, **arguments)

    return call
