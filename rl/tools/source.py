"""Where a tool comes from: the function or class that a file names, its options and its rules. It travels to the worker that makes it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.tools.classes import ClassTool, SharedTool
from rl.tools.config import CallRules, ToolConfig
from rl.tools.functions import FunctionTool
from rl.tools.tool import Tool
from warehouse.errors import RequestError
from warehouse.plugins import Registry


@dataclass(frozen=True, slots=True)
class ToolSource:
    """The tool called `name` as a file in `folder` names it."""

    name: str
    config: ToolConfig
    folder: Path

    @property
    def identity(self) -> Any:
        """What it is made from, as JSON."""
        return [self.name, str(self.folder), self.config.model_dump(mode="json")]

    def make(self) -> Tool:
        """The tool, in this process.

        Raises:
            RequestError: where there is nothing of that name, or it is no tool.
        """
        if self.config.kind is not None:
            return ClassTool(self._class(self.config.kind), self.name, self.config.options, self._rules(CallRules()))
        return self._function(str(self.config.function))

    def make_shared(self) -> FunctionTool:
        """The tool that a worker holds for all trajectories. Raises as `make` does."""
        if self.config.kind is not None:
            return SharedTool(self._class(self.config.kind), self.name, self.config.options, self._rules(CallRules()))
        return self._function(str(self.config.function))

    def _function(self, reference: str) -> FunctionTool:
        found = self._load(reference)
        if isinstance(found, FunctionTool):
            return FunctionTool(found.function, self.name, self._rules(found.rules))
        if inspect.isclass(found) or not callable(found):
            raise RequestError(f"the tool {self.name!r} names {reference} as its function, and that is a {_what(found)}.")
        return FunctionTool(found, self.name, self._rules(CallRules()))

    def _class(self, reference: str) -> type:
        found = self._load(reference)
        if not inspect.isclass(found):
            raise RequestError(f"the tool {self.name!r} names {reference} as its class, and that is a {_what(found)}.")
        return found

    def _rules(self, own: CallRules) -> CallRules:
        """How it is called: as the file says, else as its decorator does."""
        said = self.config.model_fields_set & CallRules.model_fields.keys()
        return own.model_copy(update={field: getattr(self.config, field) for field in said})

    def _load(self, reference: str) -> Any:
        module, _, attribute = reference.rpartition(":")
        name = f"{self.folder / module}:{attribute}" if module.endswith(".py") else reference
        return Registry(f"function or class of the tool {self.name!r}", {}, "agent_flywheel.tools").load(name)


def _what(found: Any) -> str:
    return "class: name it as `class`" if inspect.isclass(found) else f"{type(found).__name__}"
