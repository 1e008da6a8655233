"""What an environment is: everything outside the policy that answers its actions.

An environment serves one trajectory at a time. It is named by one of the names below or by `module:attribute`, the
attribute being a factory that takes `Resources`; the module must be importable where the environment workers run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any, Protocol, cast

from rl.dialect import Action
from rl.search import SearchIndex
from warehouse.errors import RequestError
from warehouse.records import Task

BUILT_IN = {
    "search": "rl.environments.search:create",
    "calculator": "rl.environments.calculator:create",
    "python": "rl.environments.python:create",
    "repository": "rl.environments.repository:create",
}


class EnvironmentFault(Exception):
    """The environment failed or took too long; the action says nothing about the policy."""


class ToolOutcome(StrEnum):
    """What came of a tool call. `MISS` found nothing, `ERROR` was called wrongly, `UNPARSABLE` was no call at all."""

    OK = "ok"
    MISS = "miss"
    ERROR = "error"
    UNPARSABLE = "unparsable"


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy sees before its first action, beside the question; often nothing."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What an action brought. `reward` is the environment's own for this turn; None where it has nothing to say."""

    observation: str = ""
    reward: float | None = None
    done: bool = False
    tool_outcome: ToolOutcome | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resources:
    """What environments of one worker share: the corpus's index and the options of this environment's name."""

    index: SearchIndex | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


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


EnvironmentFactory = Callable[[Resources], Environment]


def find_environment(name: str) -> EnvironmentFactory:
    """The factory of the environment called `name`, a name of `BUILT_IN` or `module:attribute`.

    Raises:
        RequestError: where there is none.
    """
    module, _, attribute = BUILT_IN.get(name, name).partition(":")
    if not module or not attribute:
        raise RequestError(f"there is no environment {name!r}; name one of {', '.join(BUILT_IN)}, or give module:attribute.")
    try:
        return cast(EnvironmentFactory, getattr(import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise RequestError(f"the environment {name!r} cannot be imported: {error}.") from error
