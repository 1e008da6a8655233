"""Protocol of environments, which answer a policy's actions, and their registry.

An environment serves one trajectory at a time. A task names it by a built-in name, an entry point of the group
`agent_flywheel.environments`, or a configured kind, which may be any `module:attribute` or `file.py:attribute`. The attribute is a factory
that takes `Resources`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pkgutil import resolve_name
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from rl.content import ContentPart, ImageFault, mended
from rl.envs.config import EnvironmentPoolConfig
from rl.renderers.base import Action, Schema
from rl.retrieval.search import Index
from warehouse.plugins import Registry
from warehouse.records import Task
from warehouse.settings import Read, read_options

T = TypeVar("T")
BUILT_IN = {
    "search": "rl.envs.search:create",
    "retrieve": "rl.envs.search:create_retrieve",
    "calculator": "rl.envs.code:create_calculator",
    "tools": "rl.envs.tool_use:create",
    "none": "rl.envs.tool_use:create_without_tools",
    "tool_world": "rl.envs.tool_world.environment:create",
    "game": "rl.envs.game:create",
    "judge": "rl.envs.judge:create",
    "agentgym": "rl.envs.agentgym:create",
    "openenv": "rl.envs.openenv:create",
    "python": "rl.envs.code:create_interpreter",
    "repository": "rl.envs.repository:create",
    "harbor": "rl.envs.harbor:create",
}
OPTION_CHECKS = {
    "tools": "rl.envs.tool_use:check_options",
    "judge": "rl.envs.judge:check_options",
    "tool_world": "rl.envs.tool_world.environment:check_options",
}
"""Functions that check an environment's options, and the code these name, before a run starts."""
ENVIRONMENTS = Registry("environment", BUILT_IN, "agent_flywheel.environments", "rollout.environments.kinds", arguments=("resources",))


class FaultKind(StrEnum):
    """Kind of an environment's failure. `ERROR` is any exception it raised; `DIED` is the death of its process."""

    ERROR = "error"
    TIMEOUT = "timeout"
    DIED = "died"
    MEMORY = "memory"
    UNREACHABLE = "unreachable"
    IMAGE = "image"
    """It returned an image that cannot be decoded or is too large."""
    USER = "user"
    """The simulated user broke its role."""
    REPLAY = "replay"
    """It answered a replayed call differently."""


class EnvironmentFault(Exception):
    """The environment failed or exceeded its time limit; not the policy's fault.

    The text begins with the kind and a colon, like the trajectory's `error`; SQL counts faults by `split_part(error, ':', 1)`.
    """

    def __init__(self, message: str, kind: FaultKind = FaultKind.ERROR) -> None:
        super().__init__(message, kind)
        self.message = mended(message)
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.message}"


def fault_kind(error: BaseException) -> FaultKind:
    """Fault kind of an error or of the first known cause in its chain."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, EnvironmentFault):
            return link.kind
        if isinstance(link, ImageFault):
            return FaultKind.IMAGE
        if isinstance(link, MemoryError | TimeoutError):
            return FaultKind.MEMORY if isinstance(link, MemoryError) else FaultKind.TIMEOUT
        link = link.__cause__
    return FaultKind.ERROR


class ToolOutcome(StrEnum):
    """Outcome of a tool call: `MISS` found nothing, `ERROR` was called wrongly, `UNPARSABLE` is not a call."""

    OK = "ok"
    MISS = "miss"
    ERROR = "error"
    UNPARSABLE = "unparsable"


@dataclass(frozen=True, slots=True)
class FileExchange(Action):
    """What the loop `harness` asks of an environment with files. No dialect builds it, so no policy can ask.

    Without arguments, `info` of the step has `files`, base64 by name. With arguments, a JSON object of new texts by name (None: removed),
    the environment takes them over.
    """

    tool: str = "files"
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy sees before its first action in addition to the question, often nothing.

    `tools` are the schemas of its tools, for dialects that show them. `has_files`: it judges files, and takes a `FileExchange`.
    """

    text: str = ""
    tools: tuple[Schema, ...] = ()
    has_files: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Response to an action. `reward` is the environment's own reward for this turn, None if it gives none.

    If the observation has images, `parts` holds it in full and `observation` only its text, for dialects without images. `retries` counts
    failed tool calls before success; `latency_seconds` is the time of all of them, None without a tool. `info` is JSON-serializable; tools
    store their parsed `arguments` and any `figures` in it.
    """

    observation: str = ""
    reward: float | None = None
    done: bool = False
    tool_outcome: ToolOutcome | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[ContentPart, ...] = ()
    retries: int = 0
    latency_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources shared by the environments of one worker: the corpus's index, options of the kind, and objects made by `once`.

    `trajectory_id` is per environment: the id of its trajectory, empty without one.
    """

    index: Index | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    trajectory_id: str = ""
    _kept: dict[str, Any] = field(default_factory=dict)

    def read(self, model: type[Read]) -> Read:
        """Validate the options. Raises RequestError naming one that is unknown or invalid."""
        return read_options(model, self.options)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of `make`, which is called once per `name` and worker; for clients, models and other costly objects."""
        if name not in self._kept:
            self._kept[name] = make()
        return cast(T, self._kept[name])


class Environment(Protocol):
    """Answers the actions of one trajectory. Any exception makes the trajectory invalid."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin a trajectory."""
        ...

    async def step(self, action: Action) -> Step:
        """Answer one action."""
        ...

    async def close(self) -> None:
        """Release the trajectory's resources."""
        ...


@runtime_checkable
class Probed(Protocol):
    """An environment that checks its dependencies, called in each worker before the first trajectory."""

    async def probe(self) -> None:
        """Raise if something is missing; the message is shown to the user."""
        ...


EnvironmentFactory = Callable[[Resources], Environment]


def find_environment(name: str) -> EnvironmentFactory:
    """Factory of the environment `name`. Raises RequestError if there is none."""
    return cast(EnvironmentFactory, ENVIRONMENTS.load(name))


def offered_tools(name: str, pool: EnvironmentPoolConfig, index: Index | None) -> tuple[Schema, ...]:
    """Schemas of the tools that the environment `name` offers at the start of a trajectory. Raises RequestError if there is none."""
    kind = pool.kind(name)
    environment = find_environment(kind.factory or name)(Resources(index, kind.options))

    async def ask() -> tuple[Schema, ...]:
        first = await environment.reset(Task("", name, "", ()), seed=0)
        await environment.close()
        return first.tools

    return asyncio.run(ask())


def check_environment(name: str, pool: EnvironmentPoolConfig) -> None:
    """Check the environment `name` before a run: its factory, its options, and the code they name.

    Raises:
        RequestError: any of these cannot be used.
    """
    ENVIRONMENTS.load_recorded(name, pool.listed)
    kind, where = pool.kind(name), f"rollout.environments.kinds.{name}"
    if check := OPTION_CHECKS.get(kind.factory or name):
        resolve_name(check)(kind.options, where)
