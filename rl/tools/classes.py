"""Classes as tools: an instance for each trajectory, with the state that its calls leave behind.

    class Notebook:
        def __init__(self, pages: int = 10) -> None: ...                      # options, from the file that names the tool
        def create(self, trajectory_id: str, seed: int) -> None: ...          # the trajectory begins
        def execute(self, note: str) -> str: ...                              # one call; its signature is the tool's
        def release(self) -> None: ...                                        # the trajectory is over, however it ended

Each method may be plain (it runs in a thread) or a coroutine function. The calls of one trajectory run one after another, in the order
in which they were made; those of different trajectories side by side. A method `health`, where there is one, is called by the gate.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from rl.tools.config import CallRules
from rl.tools.errors import ToolFault
from rl.tools.functions import FunctionTool
from rl.tools.results import Shown, show
from rl.tools.running import in_thread, run, within
from rl.tools.signatures import Signature
from rl.tools.tool import Tool, check_name
from warehouse.errors import RequestError

METHODS = ("create", "execute", "release")


class ClassTool(Tool):
    """A class whose instances serve a trajectory each."""

    def __init__(self, kind: type, name: str, options: Mapping[str, Any] | None = None, rules: CallRules | None = None) -> None:
        """Raises `RequestError` where the class lacks a method, does not take the options, or could not be called by a policy."""
        check_name(name)
        missing = [method for method in METHODS if not callable(getattr(kind, method, None))]
        if missing:
            raise RequestError(f"the class of the tool {name!r} has no method {missing[0]!r}: it needs {', '.join(METHODS)}.")
        self._make = construction(kind, name, options or {})
        self.signature = Signature(kind.execute, name, skip=1)  # type: ignore[attr-defined]
        super().__init__(name, self.signature.description, self.signature.parameters, rules or CallRules())

    async def open(self, trajectory_id: str, seed: int) -> OpenInstance:
        """An instance that was told of the trajectory."""
        instance = await within(in_thread(self._make), self.rules.timeout_seconds)
        values = {"trajectory_id": trajectory_id, "seed": seed}
        await run(instance.create, values, _nothing, self.rules.timeout_seconds)
        return OpenInstance(instance, self.signature, self.rules)

    async def examine(self) -> None:
        """Call the method `health` of a new instance, where there is one."""
        await examine(await within(in_thread(self._make), self.rules.timeout_seconds), self.rules)


class OpenInstance:
    """An instance in use by a trajectory."""

    def __init__(self, instance: Any, signature: Signature, rules: CallRules) -> None:
        self._instance, self._signature, self._rules = instance, signature, rules
        self._turn = asyncio.Lock()

    async def call(self, values: Mapping[str, Any]) -> Shown:
        """Call `execute`, after the calls that came before."""
        checked = self._signature.check(values)
        async with self._turn:
            return await run(self._instance.execute, checked, self._finish, self._rules.timeout_seconds)

    async def release(self) -> None:
        """Call `release`."""
        await run(self._instance.release, {}, _nothing, self._rules.timeout_seconds)

    def _finish(self, value: Any) -> Shown:
        return show(self._signature.check_result(value), self._rules.bounds)


class SharedTool(FunctionTool):
    """One instance of a class for all trajectories: what a worker holds. It needs `execute` alone, and may have no state of theirs."""

    def __init__(self, kind: type, name: str, options: Mapping[str, Any] | None = None, rules: CallRules | None = None) -> None:
        """Make the instance, however long that takes. Raises `RequestError` where the class is not fit to be shared."""
        if not callable(getattr(kind, "execute", None)):
            raise RequestError(f"the class of the tool {name!r} has no method 'execute'.")
        of_one = [method for method in ("create", "release") if hasattr(kind, method)]
        if of_one:
            raise RequestError(
                f"the class of the tool {name!r} has a method {of_one[0]!r}, for state of one trajectory, and a worker is shared by all: "
                "take `worker` away, or the method."
            )
        self._instance = construction(kind, name, options or {})()
        super().__init__(self._instance.execute, name, rules)

    async def examine(self) -> None:
        """Call the method `health`, where there is one."""
        await examine(self._instance, self.rules)


def construction(kind: type, name: str, options: Mapping[str, Any]) -> partial[Any]:
    """What makes an instance of `kind` with its options.

    Raises:
        RequestError: where it does not take them.
    """
    try:
        inspect.signature(kind).bind(**options)
    except TypeError as error:
        raise RequestError(f"the class of the tool {name!r} does not take its options: {error}.") from error
    return partial(kind, **options)


async def examine(instance: Any, rules: CallRules) -> None:
    """Call the method `health` of an instance, where there is one: it raises, or returns False, where something is wrong."""
    health = getattr(instance, "health", None)
    if health is not None and await run(health, {}, _same, rules.timeout_seconds) is False:
        raise ToolFault("its health() is False")


def _nothing(value: Any) -> None:
    return None


def _same(value: Any) -> Any:
    return value
