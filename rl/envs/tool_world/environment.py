"""The environment `tool_world`: a database with tools, a goal given as changes of its tables, and optionally a simulated user.

A task names its world by domain, seed and size, from which a `GeneratedWorld` creates it, or contains a complete definition
(`definition.py`). Both come with a digest of the definition, so that a task never runs in another world than it was made for.

Each trajectory has its own database. The figures of every call hold all changes so far, so that the final state can be graded from the
record alone (`eval/graders/state.py`), wherever the trajectory ended. Only the state counts, not the calls. Method: AutoForge,
arXiv 2512.22857.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import ConfigDict, Field, NonNegativeInt, ValidationError

from eval.graders.answers import exact_match
from eval.graders.state import EXTRA_WRITES, REFERENCE, STATE, StateVerdict, compare
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
)
from rl.envs.tool_world.database import ToolDatabase
from rl.envs.tool_world.definition import GeneratedWorld, WorldDefinition, read_definition
from rl.renderers.base import Action
from rl.tools import tool
from warehouse.errors import RequestError
from warehouse.plugins import Registry
from warehouse.records import ANSWER, Task
from warehouse.settings import Section, first_error, read_options

WORLDS = Registry(
    "tool world",
    {
        "bookings": "rl.envs.tool_world.packaged:BOOKINGS",
        "inventory": "rl.envs.tool_world.packaged:INVENTORY",
        "agenda": "rl.envs.tool_world.packaged:AGENDA",
    },
    "agent_flywheel.tool_worlds",
    "rollout.environments.kinds.tool_world.options.worlds",
)
DEFINITION = "definition"
"""Key of a definition in the `world` of a task's provenance, used instead of seed and size."""
CONVERSATION_SECONDS = 55.0
"""Timeout of a user's message in seconds; less than that of a step."""


class ToolWorldOptions(Section):
    """Options of the environment `tool_world`."""

    worlds: dict[str, str] = Field(default_factory=dict)
    """Additional worlds: domain name → `GeneratedWorld` as `module:NAME` or `file.py:NAME`."""
    user: UserOptions | None = None
    """Simulated user of tasks that have a user; other tasks run without."""


class NamedWorld(Section):
    """Reference to a generated world in a task's provenance."""

    model_config = ConfigDict(strict=True)

    domain: str
    seed: NonNegativeInt
    size: int = Field(ge=1, le=10_000)
    digest: str


@dataclass(slots=True)
class _Attempt:
    task: Task
    database: ToolDatabase
    answer: str = ""
    conversation: Conversation | None = None

    def reward(self, verdict: StateVerdict) -> float:
        """1 if the goal is reached and the answer, if the task has one, is right; a task without state goal allows no changes."""
        read_only = not self.task.provenance[REFERENCE]
        right = not self.task.answers or exact_match(self.answer, self.task.answers)
        return float(verdict.reached and right and not (read_only and verdict.extra))


class ToolWorldEnvironment(StatefulEnvironment):
    """World of a task with its tools, and its user if it has one; `user` creates the simulated user."""

    def __init__(self, options: ToolWorldOptions, user: Callable[[], SimulatedUser] | None = None) -> None:
        super().__init__({})
        self._options, self._user = options, user
        self._attempt: _Attempt | None = None

    async def reset(self, task: Task, seed: int) -> Observation:
        """Create the task's world, which depends on the task alone, so that all its trajectories begin alike."""
        self._free()
        database = self._database_of(task)
        self._attempt = _Attempt(task, database)
        opening = ""
        if USER in task.provenance:
            conversation = self._attempt.conversation = self._conversation(task, database.names(), seed)
            opening = await conversation.open()
        self.tools = self._tools(self._attempt)
        return replace(await super().reset(task, seed), text=opening)

    async def step(self, action: Action) -> Step:
        """Call a tool, or answer and be graded."""
        if action.tool == ANSWER and self._attempt is not None:
            self._attempt.answer = action.arguments
        return await super().step(action)

    def copy(self) -> ToolWorldEnvironment:
        """Copy the environment in its current state; the copies are independent."""
        other = ToolWorldEnvironment(self._options, self._user)
        other._over = self._over
        if self._attempt is not None:
            attempt = other._attempt = replace(self._attempt, database=self._attempt.database.copy())
            attempt.conversation = copy(attempt.conversation)
            if attempt.conversation is not None:
                attempt.conversation.said = [*attempt.conversation.said]
            other.tools = self._tools(attempt)
        return other

    async def close(self) -> None:
        await super().close()
        self._free()

    def _free(self) -> None:
        if self._attempt is not None:
            self._attempt.database.close()
            self._attempt = None

    def _tools(self, attempt: _Attempt) -> dict[str, Any]:
        if attempt.conversation is None:
            return attempt.database.tools
        respond = tool(name=RESPOND, timeout_seconds=CONVERSATION_SECONDS)(attempt.conversation.respond)
        return {**attempt.database.tools, RESPOND: respond}

    def _complete(self, step: Step) -> Step:
        attempt = self._attempt
        if attempt is None:
            raise EnvironmentFault("the tool world must be reset before its first step")
        made = attempt.database.changes()
        verdict = compare(attempt.task.provenance[REFERENCE], made)
        figures = {**step.info.get("figures", {}), STATE: made, EXTRA_WRITES: len(verdict.extra)}
        done = step.done or (attempt.conversation is not None and attempt.conversation.over)
        reward = attempt.reward(verdict) if done else step.reward
        return replace(step, info={**step.info, "figures": figures}, reward=reward, done=done)

    def _database_of(self, task: Task) -> ToolDatabase:
        named = task.provenance.get("world")
        if not isinstance(task.provenance.get(REFERENCE), Mapping) or not isinstance(named, Mapping):
            raise EnvironmentFault(f"the task {task.key} does not specify a tool world and the changes to make in it")
        try:
            definition = read_definition(named[DEFINITION]) if DEFINITION in named else self._generated(named)
            if definition.digest == named.get("digest"):
                return ToolDatabase(definition)
        except ValidationError as error:
            raise EnvironmentFault(f"the task {task.key} does not specify a valid tool world: {first_error(error)}") from error
        except ValueError as error:
            raise EnvironmentFault(f"the task {task.key} has an invalid tool world: {error}") from error
        raise EnvironmentFault(f"the world of the task {task.key} has changed since the task was created: create its tasks again")

    def _generated(self, data: Mapping[str, Any]) -> WorldDefinition:
        named = NamedWorld.model_validate(data)
        return find_world(named.domain, self._options.worlds).definition(named.seed, named.size)

    def _conversation(self, task: Task, names: frozenset[str], seed: int) -> Conversation:
        try:
            goal = UserGoal.model_validate(task.provenance[USER]).goal
        except ValidationError as error:
            raise EnvironmentFault(f"the user of the task {task.key} has no goal: {first_error(error)}") from error
        if self._user is None or self._options.user is None:
            raise RequestError(
                f"the task {task.key} needs a simulated user, but none is configured: set {SIMULATED_USERS.setting}.factory."
            )
        return Conversation(self._user(), goal, names, seed, self._options.user.most_messages)


def find_world(domain: str, own: Mapping[str, str]) -> GeneratedWorld:
    """The kind of world with name `domain`; `own` are the configured worlds, by name.

    Raises:
        RequestError: there is none, or it is not a GeneratedWorld.
    """
    found = WORLDS.load_recorded(domain, own)
    if not isinstance(found, GeneratedWorld):
        raise RequestError(f"the tool world {domain!r} is not a GeneratedWorld: correct it in {WORLDS.setting}.")
    return found


def check_options(options: Mapping[str, Any], where: str) -> None:
    """Check the configured worlds and simulated user. Raises RequestError."""
    read = read_options(ToolWorldOptions, options, where)
    for world in read.worlds.values():
        WORLDS.load(world)
    if read.user is not None:
        SIMULATED_USERS.load(read.user.factory)


def create(resources: Resources) -> ToolWorldEnvironment:
    options = resources.read(ToolWorldOptions)
    if options.user is None:
        return ToolWorldEnvironment(options)
    user = options.user
    factory = cast(SimulatedUserFactory, SIMULATED_USERS.load(user.factory))
    return ToolWorldEnvironment(options, lambda: resources.once("simulated user", lambda: factory(user.options)))
