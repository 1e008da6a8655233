"""Tool worlds: a schema, a state that fits it, tools as functions over that state, and the environment that pays for the state left.

A world of the same domain, seed and size is the same for ever, so that a task names its world by these three and holds a digest to
prove it. Keys of records follow from what they hold, never from a counter: what a policy tried before does not change them.

A world may also be written, by hand or by a model: its definition is data that the task holds (`written.py`). And a task may have a user,
whom the policy talks to (`conversation.py`).

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
from typing import Any, ClassVar, cast

from pydantic import ConfigDict, Field, NonNegativeInt, ValidationError

from eval.graders.answers import exact_match
from eval.graders.state import EXTRA_WRITES, REFERENCE, STATE, State, StateVerdict, changes, compare
from rl.envs.base import EnvironmentFault, Observation, Resources, Step
from rl.envs.tool_use import StatefulEnvironment
from rl.envs.tool_world.conversation import (
    RESPOND,
    SIMULATED_USERS,
    USER,
    Conversation,
    SimulatedUser,
    SimulatedUserFactory,
    UserGoal,
    UserOptions,
    names_in,
)
from rl.envs.tool_world.definition import read_definition
from rl.envs.tool_world.limits import CodeLimits
from rl.envs.tool_world.steps import Tables
from rl.envs.tool_world.written import WrittenWorld
from rl.renderers.base import Action
from rl.tools import Tool, ToolError, ToolMiss, tool
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.plugins import Registry
from warehouse.records import ANSWER, Task
from warehouse.settings import Section, first_error

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


DEFINITION = "definition"
"""Where the `world` of a task's provenance holds a definition, in the place of a seed and a size."""


class ToolWorldOptions(Section):
    """Options of the environment `tool_world`."""

    worlds: dict[str, str] = Field(default_factory=dict)
    """Worlds of one's own: the name of a domain, and the class as `module:Class` or `file.py:Class`."""
    code: CodeLimits = CodeLimits()
    """What the code of written tools may use; it runs in the sandbox."""
    user: UserOptions | None = None
    """Who plays the users of tasks that have one; tasks without are played without."""


CONVERSATION_SECONDS = 55.0
"""How long the user may take to say something; less than a step may."""
_NO_LONGER = "the world of the task {} is no longer what it was made for: make its tasks anew"


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
    world: World | WrittenWorld
    before: Tables
    answer: str = ""
    conversation: Conversation | None = None

    def reward(self, verdict: StateVerdict) -> float:
        """1 where the task-relevant part of the state is reached, and the answer right where one is asked for."""
        read_only = not self.task.provenance[REFERENCE]
        right = not self.task.answers or exact_match(self.answer, self.task.answers)
        return float(verdict.reached and right and not (read_only and verdict.extra))


class ToolWorldEnvironment(StatefulEnvironment):
    """The world that a task names, with its tools, and its user where it has one.

    `user` gives who plays users; it is asked where a task has one alone.
    """

    def __init__(self, options: ToolWorldOptions, user: Callable[[], SimulatedUser] | None = None) -> None:
        super().__init__({})
        self._options, self._user = options, user
        self._attempt: _Attempt | None = None

    async def reset(self, task: Task, seed: int) -> Observation:
        """Make the task's world; it follows from the task alone, so that all trajectories of a task begin alike."""
        world = self._world_of(task)
        self.tools = world.tools if isinstance(world, WrittenWorld) else tools_of(world)
        self._attempt = _Attempt(task, world, deepcopy(world.state))
        opening = ""
        if USER in task.provenance:
            talk = self._attempt.conversation = self._conversation(task, names_in(world.state), seed)
            self.tools = {**self.tools, RESPOND: tool(name=RESPOND, timeout_seconds=CONVERSATION_SECONDS)(talk.respond)}
            opening = await talk.open()
        return replace(await super().reset(task, seed), text=opening)

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
        done = step.done or (attempt.conversation is not None and attempt.conversation.over)
        reward = attempt.reward(verdict) if done else step.reward
        return replace(step, info={**step.info, "figures": figures}, reward=reward, done=done)

    def _world_of(self, task: Task) -> World | WrittenWorld:
        if not isinstance(task.provenance.get(REFERENCE), Mapping):
            raise EnvironmentFault(f"the task {task.key} names no tool world with the changes that it asks for")
        data = task.provenance.get("world")
        if isinstance(data, Mapping) and DEFINITION in data:
            return self._written(task, data)
        named = _named_world(task)
        world = find_world(named.domain, self._options.worlds)(named.seed, named.size)
        if world.digest != named.digest:
            raise EnvironmentFault(_NO_LONGER.format(task.key))
        return world

    def _written(self, task: Task, data: Mapping[str, Any]) -> WrittenWorld:
        try:
            definition = read_definition(data[DEFINITION])
        except ValueError as error:
            raise EnvironmentFault(f"the task {task.key} holds no tool world: {error}") from error
        if definition.digest != data.get("digest"):
            raise EnvironmentFault(_NO_LONGER.format(task.key))
        return WrittenWorld(definition, self._options.code)

    def _conversation(self, task: Task, names: frozenset[str], seed: int) -> Conversation:
        try:
            goal = UserGoal.model_validate(task.provenance[USER]).goal
        except ValidationError as error:
            raise EnvironmentFault(f"the user of the task {task.key} has no goal: {first_error(error)}") from error
        if self._user is None or self._options.user is None:
            raise RequestError(f"the task {task.key} has a user, and nobody plays it: set {SIMULATED_USERS.setting}.factory.")
        return Conversation(self._user(), goal, names, seed, self._options.user.most_messages)


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
    options = resources.read(ToolWorldOptions)
    if options.user is None:
        return ToolWorldEnvironment(options)
    user = options.user
    factory = cast(SimulatedUserFactory, SIMULATED_USERS.load(user.factory))
    return ToolWorldEnvironment(options, lambda: resources.once("simulated user", lambda: factory(user.options)))


@cache
def _at_once(method: Callable[..., str]) -> Callable[..., Awaitable[str]]:
    """A plain method as a coroutine: it is over in microseconds, and needs no thread of its own. Made once, as its schema then is."""

    @wraps(method)
    async def call(world: World, **arguments: Any) -> str:
        return method(world, **arguments)

    return call
