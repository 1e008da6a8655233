"""Tools: typed functions with a schema made from their annotations and their Google docstring.

A tool that is called wrongly raises `ToolError`: the policy is told, and may try again. Anything else that a tool raises is a
fault of the tool, and makes the trajectory invalid.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, get_type_hints

from pydantic import BaseModel, Field, ValidationError, create_model

_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Examples?):\s*$")
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


class ToolError(Exception):
    """The call was wrong; the text says how, to the policy."""


class ToolMiss(Exception):
    """The call was right and there is nothing to give; the text says so, to the policy."""


class Tool:
    """A function that a policy may call. It returns the text that the policy sees.

    Coroutine functions run in the worker's event loop; plain functions run in a thread, where they hold up nobody else.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.function = function
        self.name = name or function.__name__
        self._hints = {key: value for key, value in get_type_hints(function).items() if key != "return"}

    @cached_property
    def description(self) -> str:
        """The docstring up to its first section."""
        return _read_docstring(self.function)[0]

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        return self._arguments.model_json_schema()

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates and OpenAI-compatible servers want it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    async def __call__(self, arguments: str | Mapping[str, Any]) -> str:
        """Call the tool with an object of arguments, its JSON, or the plain text of its only argument where that is a string.

        Raises:
            ToolError: where the arguments do not fit.
        """
        values = self._read(arguments)
        if inspect.iscoroutinefunction(self.function):
            return str(await self.function(**values))
        return str(await asyncio.to_thread(self.function, **values))

    @cached_property
    def _arguments(self) -> type[BaseModel]:
        described = _read_docstring(self.function)[1]
        fields: dict[str, Any] = {}
        for name, parameter in inspect.signature(self.function).parameters.items():
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[name] = (self._hints.get(name, str), Field(default, description=described.get(name)))
        return create_model(self.name, **fields)

    def _read(self, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(arguments, str) and len(self._hints) == 1 and str in self._hints.values():
            return {next(iter(self._hints)): arguments}
        try:
            values = json.loads(arguments) if isinstance(arguments, str) else arguments
            checked = self._arguments.model_validate(values)
        except (json.JSONDecodeError, ValidationError) as error:
            raise ToolError(f"wrong arguments for {self.name}: {_first_line(error)}") from error
        return {name: getattr(checked, name) for name in self._arguments.model_fields}


def tool(function: Callable[..., Any]) -> Tool:
    """Make a typed function a tool."""
    return Tool(function)


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description and the descriptions of the arguments in a Google docstring."""
    description: list[str] = []
    arguments: dict[str, str] = {}
    section = name = None
    for line in (inspect.getdoc(function) or "").splitlines():
        text = line.strip()
        header, argument = _SECTION.match(text), _ARGUMENT.match(text)
        if header:
            section = header[1]
        elif section is None:
            description.append(text)
        elif section in ("Args", "Arguments") and argument:
            name = argument[1]
            arguments[name] = argument[2]
        elif section in ("Args", "Arguments") and name and text:
            arguments[name] += f" {text}"
    return " ".join(filter(None, description)), arguments


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)
