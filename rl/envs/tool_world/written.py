"""A written world in use: its state, and its tools, which read and change it.

A call works on a copy of the state. What it leaves must fit the tables, or it is refused and changes nothing, as a database refuses what
breaks its rules. Code that a tool is written in is text to this process: each call is a program of its own in the sandbox, which gets the
state and the arguments as JSON and gives the state back as JSON. What it gives back is read as strictly as everything else of a
definition. Code that ends in an error, takes too long or gives back anything else is a fault of the tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from eval.sandbox.sandbox import MIB, Program, Sandbox, SandboxConfig, SandboxFault, python_program
from rl.envs.code import program_slot
from rl.envs.tool_world.definition import ToolDefinition, WorldDefinition, misfit
from rl.envs.tool_world.limits import CodeLimits
from rl.envs.tool_world.steps import Tables, carry_out
from rl.tools import Tool, ToolError, ToolFault, ToolMiss
from rl.tools.arguments import ArgumentsSchema
from rl.tools.config import CallRules
from rl.tools.tool import StatelessTool, ToolResponse, check_name, to_response
from warehouse.bounds import read_text_json

LONGEST_RESULT = 8_000
"""Characters of what a written tool returns; longer results are cut off."""
_FILE = "tool.py"
_RUNNER = f"""
import json, sys

class Refused(Exception):
    pass

class Nothing(Exception):
    pass

def main(out):
    asked = json.load(sys.stdin)
    names = {{"__name__": "tool", "Refused": Refused, "Nothing": Nothing}}
    exec(compile(open({_FILE!r}).read(), {_FILE!r}, "exec"), names)
    function, state = names[asked["tool"]], asked["state"]
    if not callable(function):
        raise TypeError("it is no function")
    try:
        returned = None if asked["arguments"] is None else function(state, **asked["arguments"])
        said = {{"returned": returned, "state": state}}
    except Refused as refusal:
        said = {{"refused": str(refusal)}}
    except Nothing as nothing:
        said = {{"nothing": str(nothing)}}
    json.dump(said, out, allow_nan=False)

out, sys.stdout = sys.stdout, sys.stderr
try:
    main(out)
except Exception as error:
    sys.stderr.write("\\n" + type(error).__name__ + ": " + str(error)[:300])
    sys.exit(1)
"""
"""Runs one call of a tool that was written as code, which says by `Refused` that it is wrong and by `Nothing` that it finds nothing."""


def sandbox_of(limits: CodeLimits) -> Sandbox:
    """The sandbox of these limits: isolated, without installed packages."""
    config = SandboxConfig(
        wall_seconds=limits.wall_seconds,
        cpu_seconds=limits.cpu_seconds,
        memory_mib=limits.memory_mib,
        disk_mib=4,
        max_files=64,
        processes=8,
        output_bytes=2 * MIB,
        libraries=False,
    )
    return Sandbox(config)


class WrittenWorld:
    """One world of a definition, for one trajectory."""

    def __init__(self, definition: WorldDefinition, limits: CodeLimits) -> None:
        self._definition, self._limits = definition, limits
        self.state: Tables = {table: {} for table in definition.tables} | deepcopy(definition.records)

    @property
    def tools(self) -> dict[str, Tool]:
        """Its tools, by name."""
        return {name: WrittenTool(name, tool, self) for name, tool in self._definition.tools.items()}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """What a tool returns, whose changes are the world's from then on.

        Raises:
            ToolError, ToolMiss: the call is refused, or finds nothing; nothing is changed.
            ToolFault: the tool's code failed.
        """
        tool, state = self._definition.tools[name], deepcopy(self.state)
        if tool.code is None:
            returned = carry_out(tool, state, arguments)
        else:
            returned, state = await self._run(name, tool.code, state, arguments)
        if why := misfit(self._definition.tables, state):
            raise ToolError(f"this would break the rules of the tables: {why}")
        self.state = state
        return returned

    async def _run(self, name: str, code: str, state: Tables, arguments: Mapping[str, Any]) -> tuple[Any, Tables]:
        said = await run_code(name, code, state, arguments, self._limits)
        if isinstance(refusal := said.get("refused"), str):
            raise ToolError(refusal)
        if isinstance(nothing := said.get("nothing"), str):
            raise ToolMiss(nothing)
        after = said.get("state")
        if not isinstance(after, dict) or not all(isinstance(records, dict) for records in after.values()):
            raise ToolFault("its code left no state of tables and records")
        return said.get("returned"), after


class WrittenTool(StatelessTool):
    """A tool of a written world."""

    def __init__(self, name: str, definition: ToolDefinition, world: WrittenWorld) -> None:
        rules = CallRules(max_characters=LONGEST_RESULT, timeout_seconds=60)
        super().__init__(check_name(name), definition.description, definition.json_schema, rules)
        self._arguments, self._definition, self._world = ArgumentsSchema(definition.json_schema, name), definition, world

    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        """Check the arguments, and call it."""
        self._arguments.check(values)
        return to_response(await self._world.call(self.name, self._whole(values)), self.rules)

    def _whole(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values, integers among them as such: JSON says 2.0 for 2 where it likes."""
        kinds = {name: each.type for name, each in self._definition.parameters.items()}
        return {name: int(value) if kinds[name] == "integer" else value for name, value in values.items()}


async def run_code(name: str, code: str, state: Tables, arguments: Mapping[str, Any] | None, limits: CodeLimits) -> dict[str, Any]:
    """Run the function `name` of `code` in the sandbox, or with None for arguments only look whether there is one; what it said.

    Raises:
        ToolFault: it failed, took too long, or said nothing that can be read; the text says which.
    """
    asked = json.dumps({"tool": name, "state": state, "arguments": arguments}).encode()
    program: Program = python_program(_RUNNER, files={_FILE: code.encode(errors="replace")}, stdin=asked)
    try:
        async with program_slot(limits.concurrency):
            result = await sandbox_of(limits).run_async(program)
    except SandboxFault as fault:
        raise ToolFault(str(fault)) from fault
    if not result.succeeded:
        lines = result.stderr_text.strip().splitlines()
        detail = lines[-1][:300] if lines and result.status == 1 else f"it ended with {result.ending}, status {result.status}"
        raise ToolFault(f"its code failed: {detail}")
    try:
        said = read_text_json(result.stdout_text)
    except ValueError as error:
        raise ToolFault("its code wrote something that is not what a tool returns") from error
    if not isinstance(said, dict):
        raise ToolFault("its code wrote something that is not what a tool returns")
    return said
