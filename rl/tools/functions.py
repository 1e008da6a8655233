"""Typed functions as tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

from rl.tools.config import CallRules
from rl.tools.results import Shown, show
from rl.tools.running import run
from rl.tools.signatures import read_signature
from rl.tools.tool import OpenTool, Stateless, Tool, check_name, make_rules


class FunctionTool(Stateless, Tool):
    """A function that a policy may call.

    Coroutine functions run in the worker's event loop and must not block it; plain functions run in a thread, where they hold up
    nobody else.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None, rules: CallRules | None = None) -> None:
        """Raises `RequestError` where a policy could not call it."""
        name = check_name(name or _name(function))
        self.function = function
        self._signature = read_signature(function, name)
        super().__init__(name, self._signature.description, self._signature.parameters, rules or CallRules())

    async def open(self, trajectory_id: str, seed: int) -> OpenTool:
        """Itself: it keeps nothing."""
        return self

    async def call(self, values: Mapping[str, Any]) -> Shown:
        """Call the function."""
        return await run(self.function, self._signature.check(values), self._finish, self.rules.timeout_seconds)

    def _finish(self, value: Any) -> Shown:
        return show(self._signature.check_result(value), self.rules.bounds)


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
    return lambda function: FunctionTool(function, name, make_rules(name or _name(function), rules))


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))
