"""Typed functions and classes as tools, and the tools of a file.

A class has one instance per trajectory, which keeps state between calls:

    class Notebook:
        def __init__(self, pages: int = 10) -> None: ...                      # options, from the tools file
        def create(self, trajectory_id: str, seed: int) -> None: ...          # the trajectory begins; may also take `task`
        def execute(self, note: str) -> str: ...                              # one call; its signature is the tool's
        def release(self) -> None: ...                                        # the trajectory is over, however it ended

Each method may be plain (run in a thread) or a coroutine function. Calls of one trajectory run one at a time, in order; those of different
trajectories run concurrently. An optional method `health` is called before the first trajectory.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from rl.tools.arguments import Signature, read_signature
from rl.tools.calls import in_thread, run, within
from rl.tools.config import CallRules, ToolConfig
from rl.tools.tool import StatelessTool, Tool, ToolFault, ToolResponse, check_name, to_response
from warehouse.errors import RequestError
from warehouse.plugins import Registry
from warehouse.records import Task
from warehouse.settings import read_options

T = TypeVar("T")
METHODS = ("create", "execute", "release")


class FunctionTool(StatelessTool):
    """A function that a policy may call.

    Coroutine functions run in the worker's event loop and must not block it; plain functions run in a thread.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None, rules: CallRules | None = None) -> None:
        """Raises RequestError if a policy could not call it."""
        name = check_name(name or _name(function))
        self.function = function
        self._signature = read_signature(function, name)
        super().__init__(name, self._signature.description, self._signature.parameters, rules or CallRules())

    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        return await run(self.function, self._signature.check(values), self._finish, self.rules.timeout_seconds)

    def _finish(self, value: Any) -> ToolResponse:
        return to_response(self._signature.check_result(value), self.rules)


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(*, name: str | None = None, **rules: Any) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, **rules: Any
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a typed function a tool: `@tool`, or `@tool(retries=2, timeout_seconds=5.0)` with the fields of `CallRules`."""
    if function is not None:
        return FunctionTool(function, name)
    return lambda function: FunctionTool(function, name, read_options(CallRules, rules, f"the tool {name or _name(function)!r}"))


class ClassTool(Tool):
    """A class with one instance per trajectory."""

    def __init__(self, kind: type, name: str, options: Mapping[str, Any] | None = None, rules: CallRules | None = None) -> None:
        """Raises RequestError if the class lacks a method, rejects the options, or could not be called by a policy."""
        check_name(name)
        missing = [method for method in METHODS if not callable(getattr(kind, method, None))]
        if missing:
            raise RequestError(f"the class of the tool {name!r} has no method {missing[0]!r}: it needs {', '.join(METHODS)}.")
        self._make = _factory(kind, name, options or {})
        self.signature = Signature(kind.execute, name, skip=1)  # type: ignore[attr-defined]
        super().__init__(name, self.signature.description, self.signature.parameters, rules or CallRules())

    async def open(self, trajectory_id: str, seed: int, task: Task) -> OpenInstance:
        """Create an instance and call its `create`, with the task if it has a parameter `task`."""
        instance = await within(in_thread(self._make), self.rules.timeout_seconds)
        values: dict[str, Any] = {"trajectory_id": trajectory_id, "seed": seed}
        values |= {"task": task} if "task" in inspect.signature(instance.create).parameters else {}
        await run(instance.create, values, _unchanged, self.rules.timeout_seconds)
        return OpenInstance(instance, self.signature, self.rules)

    async def examine(self) -> None:
        await _check_instance(await within(in_thread(self._make), self.rules.timeout_seconds), self.rules)


class OpenInstance:
    """An instance used by one trajectory."""

    def __init__(self, instance: Any, signature: Signature, rules: CallRules) -> None:
        self._instance, self._signature, self._rules = instance, signature, rules
        self._lock = asyncio.Lock()

    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        """Call `execute`, after earlier calls."""
        checked = self._signature.check(values)
        async with self._lock:
            return await run(self._instance.execute, checked, self._finish, self._rules.timeout_seconds)

    async def release(self) -> None:
        await run(self._instance.release, {}, _unchanged, self._rules.timeout_seconds)

    def _finish(self, value: Any) -> ToolResponse:
        return to_response(self._signature.check_result(value), self._rules)


class SharedTool(FunctionTool):
    """One instance of a class for all trajectories, in a worker. It needs only `execute`, and must not keep state per trajectory."""

    def __init__(self, kind: type, name: str, options: Mapping[str, Any] | None = None, rules: CallRules | None = None) -> None:
        """Create the instance, which may take long. Raises RequestError if the class cannot be shared."""
        if not callable(getattr(kind, "execute", None)):
            raise RequestError(f"the class of the tool {name!r} has no method 'execute'.")
        of_one = [method for method in ("create", "release") if hasattr(kind, method)]
        if of_one:
            raise RequestError(
                f"the class of the tool {name!r} has a method {of_one[0]!r} for the state of one trajectory, but all share its worker: "
                "remove `worker` or the method."
            )
        self._instance = _factory(kind, name, options or {})()
        super().__init__(self._instance.execute, name, rules)

    async def examine(self) -> None:
        await _check_instance(self._instance, self.rules)


def _factory(kind: type, name: str, options: Mapping[str, Any]) -> partial[Any]:
    try:
        inspect.signature(kind).bind(**options)
    except TypeError as error:
        raise RequestError(f"the class of the tool {name!r} does not take its options: {error}.") from error
    return partial(kind, **options)


async def _check_instance(instance: Any, rules: CallRules) -> None:
    """Call an instance's method `health`, if it has one; raises ToolFault if it returns False."""
    health = getattr(instance, "health", None)
    if health is not None and await run(health, {}, _unchanged, rules.timeout_seconds) is False:
        raise ToolFault("its health() returned False")


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))


def _unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class ToolSource:
    """Definition of the tool `name` in a file in `folder`."""

    name: str
    config: ToolConfig
    folder: Path

    @property
    def identity(self) -> Any:
        """What the tool is created from, as JSON."""
        return [self.name, str(self.folder), self.config.model_dump(mode="json")]

    def make(self) -> Tool:
        """Create the tool in this process. Raises RequestError if it does not exist or is not a tool."""
        return self._make(ClassTool)

    def make_shared(self) -> FunctionTool:
        """Create the tool that a worker holds for all trajectories. Raises as `make` does."""
        return self._make(SharedTool)

    def _make(self, tool_of_class: Callable[..., T]) -> T | FunctionTool:
        if self.config.kind is None:
            return self._function(str(self.config.function))
        return tool_of_class(self._class(self.config.kind), self.name, self.config.options, self._rules(CallRules()))

    def _function(self, reference: str) -> FunctionTool:
        found = self._load(reference)
        if isinstance(found, FunctionTool):
            return FunctionTool(found.function, self.name, self._rules(found.rules))
        if inspect.isclass(found) or not callable(found):
            raise RequestError(f"the tool {self.name!r} names {reference} as its function, but that is a {_kind_of(found)}.")
        return FunctionTool(found, self.name, self._rules(CallRules()))

    def _class(self, reference: str) -> type:
        found = self._load(reference)
        if not inspect.isclass(found):
            raise RequestError(f"the tool {self.name!r} names {reference} as its class, but that is a {_kind_of(found)}.")
        return found

    def _rules(self, own: CallRules) -> CallRules:
        """Rules of the file; those it does not set come from the tool's decorator."""
        given = self.config.model_fields_set & CallRules.model_fields.keys()
        return own.model_copy(update={field: getattr(self.config, field) for field in given})

    def _load(self, reference: str) -> Any:
        module, _, attribute = reference.rpartition(":")
        name = f"{self.folder / module}:{attribute}" if module.endswith(".py") else reference
        return Registry(f"function or class of the tool {self.name!r}", {}, "agent_flywheel.tools").load(name)


def _kind_of(found: Any) -> str:
    return "class: set it as `class`" if inspect.isclass(found) else f"{type(found).__name__}"
