"""The interface of tools: a name, a schema of arguments, and something that can be opened for a trajectory and called."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from rl.renderers.arguments import as_object
from rl.tools.config import CallRules
from rl.tools.results import ToolError, ToolResponse
from warehouse.errors import RequestError
from warehouse.records import ANSWER

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class OpenTool(Protocol):
    """A tool as one trajectory has it."""

    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        """Call it once. Raises `ToolError`, `ToolMiss`, or anything else for a fault."""
        ...

    async def release(self) -> None:
        """Give back what the trajectory held."""
        ...


class Tool(ABC):
    """What a policy may call. `parameters` is the JSON schema of its arguments, an object."""

    def __init__(self, name: str, description: str, parameters: Mapping[str, Any], rules: CallRules) -> None:
        self.name = name
        self.description = description
        self.parameters = parameters
        self.rules = rules

    @abstractmethod
    async def open(self, trajectory_id: str, seed: int) -> OpenTool:
        """The tool for one trajectory."""

    async def examine(self) -> None:
        """Raises an error where the tool is dead; its probe is a check of its own."""
        return

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates and OpenAI-compatible servers want it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def read(self, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
        """The object that arguments stand for: itself, its JSON, or the plain text of the only argument that must be given.

        Raises:
            ToolError: where there is none, or where it holds what JSON or Unicode do not have.
        """
        try:
            values = as_object(arguments, self.parameters) if isinstance(arguments, str) else dict(arguments)
            json.dumps(values, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise ToolError(f"wrong arguments for {self.name}: {error}") from error
        return values


class StatelessTool(Tool):
    """A tool that keeps nothing for a trajectory, or shares what it keeps: `open` gives the tool itself."""

    async def open(self, trajectory_id: str, seed: int) -> OpenTool:
        """Itself."""
        return self

    @abstractmethod
    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        """See `OpenTool.call`."""

    async def release(self) -> None:
        """Nothing is held."""


def check_name(name: str, where: str = "") -> str:
    """`name`, where models and servers allow it for a tool.

    Raises:
        RequestError: where they do not.
    """
    if name == ANSWER:
        raise RequestError(f"a tool{where} is called {ANSWER!r}, which is the action that ends a trajectory: call it something else.")
    if not _NAME.fullmatch(name):
        raise RequestError(f"a tool{where} is called {name!r}: a name is a letter and up to 63 more letters, digits, _ or -.")
    return name
