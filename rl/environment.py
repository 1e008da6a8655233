"""What an environment is: everything outside the policy that answers its actions.

An environment serves one trajectory at a time. A task names it: by one of the names below, an entry point of the group
`agent_flywheel.environments`, or a kind of the configuration, which may be any `module:attribute` or `file.py:attribute`. The attribute is
a factory that takes `Resources`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from rl.content import ContentPart
from rl.images import ImageFault
from rl.renderers.base import Action, Schema
from rl.retrieval.search import Index
from warehouse.plugins import Registry
from warehouse.records import Task
from warehouse.settings import Read, read_options

T = TypeVar("T")
BUILT_IN = {
    "search": "rl.environments.search:create",
    "retrieve": "rl.environments.retrieve:create",
    "calculator": "rl.environments.calculator:create",
    "tools": "rl.environments.tool_use:create",
    "tool_world": "rl.environments.tool_world.environment:create",
    "game": "rl.environments.game:create",
    "judge": "rl.environments.judge:create",
    "agentgym": "rl.environments.agentgym:create",
    "python": "rl.environments.python:create",
    "repository": "rl.environments.repository:create",
}
ENVIRONMENTS = Registry("environment", BUILT_IN, "agent_flywheel.environments", "rollout.environments.kinds")


class FaultKind(StrEnum):
    """What went wrong with an environment. `ERROR` is whatever it raised; `DIED` is the end of the process that it ran in."""

    ERROR = "error"
    TIMEOUT = "timeout"
    DIED = "died"
    MEMORY = "memory"
    UNREACHABLE = "unreachable"
    IMAGE = "image"
    """It brought an image that cannot be decoded, or one of too many pixels."""


class EnvironmentFault(Exception):
    """The environment failed or took too long; the action says nothing about the policy.

    Its text begins with its kind and a colon, and so does the `error` of the trajectory: SQL counts them by
    `split_part(error, ':', 1)`.
    """

    def __init__(self, message: str, kind: FaultKind = FaultKind.ERROR) -> None:
        super().__init__(message, kind)
        self.message = message
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.message}"


def kind_of(error: BaseException) -> FaultKind:
    """What kind of fault an error is, by itself or by what caused it."""
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
    """What came of a tool call. `MISS` found nothing, `ERROR` was called wrongly, `UNPARSABLE` was no call at all."""

    OK = "ok"
    MISS = "miss"
    ERROR = "error"
    UNPARSABLE = "unparsable"


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy sees before its first action, beside the question; often nothing.

    `tools` are the schemas of the tools that it may call, for dialects that tell it of them.
    """

    text: str = ""
    tools: tuple[Schema, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What an action brought. `reward` is the environment's own for this turn; None where it has nothing to say.

    `parts` is there where the observation holds more than text; `observation` is then their text, for dialects that take no images.
    `retries` counts the calls of a tool that failed before one went through, `latency_seconds` is the time of all of them, and
    None where no tool ran. `info` is JSON-able; a tool puts `arguments` there as it read them, and `figures` where it has any.
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
    """What environments of one worker share: the corpus's index, the options of this kind, and what they keep by `once`.

    `trajectory_id` is not shared: it is that of the trajectory which the environment is made for, and empty where it is for none.
    """

    index: Index | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    trajectory_id: str = ""
    _kept: dict[str, Any] = field(default_factory=dict)

    def read(self, model: type[Read]) -> Read:
        """The options, checked.

        Raises:
            RequestError: where one is unknown or does not fit, naming it.
        """
        return read_options(model, self.options)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What `make` gave the first time it was asked for under `name` in this worker: a client, a model, anything dear."""
        if name not in self._kept:
            self._kept[name] = make()
        return cast(T, self._kept[name])


class Environment(Protocol):
    """Answers the actions of one trajectory. Whatever it raises makes the trajectory invalid."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin a trajectory."""
        ...

    async def step(self, action: Action) -> Step:
        """Answer one action."""
        ...

    async def close(self) -> None:
        """Give back what the trajectory held."""
        ...


@runtime_checkable
class Probed(Protocol):
    """An environment that can say beforehand whether what it rests on is there: asked in each worker before the first step."""

    async def probe(self) -> None:
        """Raise where it is not; the text is shown."""
        ...


EnvironmentFactory = Callable[[Resources], Environment]


def find_environment(name: str) -> EnvironmentFactory:
    """The factory of the environment that the configuration calls `name`.

    Raises:
        RequestError: where there is none.
    """
    return cast(EnvironmentFactory, ENVIRONMENTS.load(name))
