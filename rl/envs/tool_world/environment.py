"""Tool worlds: a schema, a state that fits it, tools as functions over that state, and the environment that pays for the state left.

A world of the same domain, seed and size is the same for ever, so that a task names its world by these three and holds a digest to
prove it. Keys of records follow from what they hold, never from a counter: what a policy tried before does not change them.

Each trajectory has a world of its own. Every call's figures hold what the trajectory has changed so far, so that the final state can be
judged from the record alone (see `eval/graders/state.py`), wherever the trajectory ended. Method: AutoForge, arXiv 2512.22857.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, wraps
from random import Random
from types import MethodType
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, NonNegativeInt, ValidationError

from eval.graders.answers import exact_match
from eval.graders.state import EXTRA_WRITES, REFERENCE, STATE, State, StateVerdict, changes, compare
from rl.envs.base import EnvironmentFault, Observation, Resources, Step
from rl.envs.tool_use import StatefulEnvironment
from rl.renderers.base import Action
from rl.tools import Tool, ToolError, ToolMiss, tool
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.plugins import Registry
from warehouse.records import ANSWER, Task
from warehouse.settings import Section, first_error

Tables = dict[str, dict[str, dict[str, Any]]]
"""A state that is being changed; see `eval.graders.state.State`."""
Schema = Mapping[str, Mapping[str, type]]
"""Table → field → the type of its values."""

_NAMES = "Amber Basil Cora Dario Elin Farid Greta Hugo Ines Jonas Kaya Lior Mira Nils Olga Pavel"
NAMES = tuple(_NAMES.split())


class World(ABC):
    """One world: its state, and its tools as methods that read and change it."""

    domain: ClassVar[str]
    """The name that tasks call this kind of world by."""
    schema: ClassVar[Schema]
    tools: ClassVar[tuple[str, ...]]
    """The methods that are tools; each takes JSON-able arguments and returns JSON."""

    def __init__(self, seed: int, size: int) -> None:
        """The world of `seed` with about `size` records in its largest tables."""
        self.state: Tables = self._populate(Random(seed_from("tool world", self.domain, seed, size)), size)

    @classmethod
    @abstractmethod
    def _populate(cls, rng: Random, size: int) -> Tables:
        """The state that the world begins with."""

    @property
    def digest(self) -> str:
        """Digest of the state as it is."""
        return digest(self.state)

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call one of its tools by name.

        Raises:
            ToolError: where it has no such tool; whatever else a tool raises for arguments that do not suit it.
        """
        if name not in self.tools:
            raise ToolError(f"there is no tool {name!r:.100}; there are {', '.join(self.tools)}")
        return str(getattr(self, name)(**arguments))

    def misfits(self) -> list[str]:
        """Paths of what does not fit the schema; empty for a world in order."""
        return [
            f"{table}/{key}" for table, records in self.state.items() for key, record in records.items() if not self._fits(table, record)
        ]

    def _fits(self, table: str, record: Mapping[str, Any]) -> bool:
        fields = self.schema.get(table, {})
        return record.keys() == fields.keys() and all(type(record[name]) is kind for name, kind in fields.items())


def records_where(state: State, table: str, **wanted: Any) -> list[dict[str, Any]]:
    """The records whose fields have the wanted values, each with its `key`, in the order of their keys.

    Raises:
        ToolMiss: where there is none.
    """
    found = [
        {"key": key, **record}
        for key, record in sorted(state[table].items())
        if all(record[name] == value for name, value in wanted.items())
    ]
    if not found:
        raise ToolMiss(f"No {table} with {', '.join(f'{name} {value!r}' for name, value in wanted.items())}.")
    return found


def as_json(value: Any) -> str:
    """What a tool returns: short, and the same for the same value."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


WORLDS = Registry(
    "tool world",
    {
        "bookings": "rl.envs.tool_world.bookings:Bookings",
        "inventory": "rl.envs.tool_world.inventory:Inventory",
        "agenda": "rl.envs.tool_world.agenda:Agenda",
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

    def _complete(self, step: Step) -> Step:
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
