"""Try out the tools of a file before training: `python -P -m rl.tools my_tools.toml [TOOL ARGUMENTS]`.

With only the file, list and probe the tools; exit status 1 if one is dead. With a tool and its arguments, call that tool once, as a
trajectory would, and print what the policy would see. An invalid request prints one sentence and exits with status 2.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rl.terminal import say
from rl.tools.calls import call_tool, dead_tools
from rl.tools.file import load_tools, read_tools_file
from rl.tools.tool import NO_TASK, Tool, ToolFault
from warehouse.errors import RequestError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -P -m rl.tools", description="Probe the tools of a file, or call one of them.")
    parser.add_argument("file", type=Path, help="the TOML file that lists the tools")
    parser.add_argument("tool", nargs="?", help="a tool to call")
    parser.add_argument("arguments", nargs="?", default="{}", help="its arguments: an object in JSON, or plain text")
    arguments = parser.parse_args()
    try:
        with _tools(arguments.file) as tools:
            return asyncio.run(_probe(tools) if arguments.tool is None else _call(tools, arguments.tool, arguments.arguments))
    except RequestError as error:
        say(error, sys.stderr)
        return 2


@contextmanager
def _tools(file: Path) -> Iterator[Mapping[str, Tool]]:
    """Tools of a file; starts Ray if one of them runs in a worker."""
    runtime = None
    workers = [tool.worker.cpus for tool in read_tools_file(file).tools.values() if tool.worker is not None]
    if workers:
        from rl.ray_runtime import RayConfig, RayRuntime

        runtime = RayRuntime(RayConfig(), cpus=sum(workers))
    try:
        toolbox = load_tools(file)
        try:
            yield toolbox.tools
        finally:
            toolbox.close()
    finally:
        if runtime is not None:
            runtime.close()


async def _probe(tools: Mapping[str, Tool]) -> int:
    for tool in tools.values():
        say(f"{tool.name}({', '.join(tool.parameters.get('properties', {}))})  {tool.description}")
    dead = await dead_tools(tools)
    say("\n".join(dead or ["all alive"]))
    return 1 if dead else 0


async def _call(tools: Mapping[str, Tool], name: str, arguments: str) -> int:
    if name not in tools:
        raise RequestError(f"there is no tool {name!r}, only {', '.join(tools)}.")
    opened = await tools[name].open("by hand", 0, NO_TASK)
    try:
        call = await call_tool(tools[name], opened, arguments)
    except ToolFault as fault:
        say(fault, sys.stderr)
        return 1
    finally:
        await opened.release()
    if call.response is None:
        say(f"Error: {call.refusal}")
        return 0
    say(call.response.text)
    extra = {"reward": call.response.reward, "figures": dict(call.response.figures) or None}
    for key, value in extra.items():
        if value is not None:
            say(f"{key}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
