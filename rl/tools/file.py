"""Load tools from a TOML file, so that an environment needs no code except the tools themselves.

    [tools.look_up]                                  # the name that the policy calls
    function = "my_tools.py:look_up"                 # or module:attribute; a file path is relative to this file
    retries = 2                                      # any field of `CallRules`, for any kind of tool

    [tools.notebook]
    class = "my_tools.py:Notebook"                   # one instance per trajectory
    options = { pages = 5 }

    [tools.read_page]
    class = "my_models:PageReader"                   # one instance in its own Ray worker, for all trajectories
    worker = { gpus = 1, concurrency = 8 }

    [servers.files]
    command = ["npx", "@modelcontextprotocol/server-filesystem", "/data"]
    only = ["read_file"]

    [servers.web]
    url = "https://tools.example/mcp"
    headers = { Authorization = "Bearer ${WEB_TOKEN}" }
    prefix = "web_"

Errors are reported before anything runs, in one sentence that names the place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from shutil import which

from pydantic import ValidationError

from rl.tools.config import ServerConfig, ToolConfig, ToolsFile, WorkerConfig
from rl.tools.mcp_server import McpServer, client_maker
from rl.tools.python_tools import ToolSource
from rl.tools.tool import Tool
from rl.tools.worker import WorkerTool
from warehouse.errors import RequestError
from warehouse.settings import Section, fault_of, read_toml


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Tools of a file by name, and the servers behind some of them."""

    tools: dict[str, Tool]
    servers: tuple[McpServer, ...] = ()

    def close(self) -> None:
        for server in self.servers:
            server.close()


def read_tools_file(path: Path) -> ToolsFile:
    """Read and validate a tools file.

    Raises:
        RequestError: it is missing or invalid, or names no tool.
    """
    try:
        file = ToolsFile.model_validate(read_toml(path.absolute(), "the tools file"))
    except ValidationError as error:
        raise RequestError(f"in the tools file {path}, {_fault(error)}.") from error
    if not file.tools and not file.servers:
        raise RequestError(f"the tools file {path} lists no tools: add a table [tools.NAME] or [servers.NAME].")
    return file


def check_tools_file(path: Path) -> None:
    """Check a tools file before anything starts: import tools without a worker, and look for the programs of servers.

    Raises:
        RequestError: as `load_tools` does.
    """
    file, folder = read_tools_file(path), path.absolute().parent
    for name, config in file.tools.items():
        if config.worker is None:
            ToolSource(name, config, folder).make()
    for name, server in file.servers.items():
        client_maker(name, server, folder)
        program = server.command[0] if server.command else "python"
        if program != "python" and "$" not in program and which(folder / program if "/" in program else program) is None:
            raise RequestError(f"the MCP server {name!r} of {path} is started by {program!r}, which is not installed: install it.")


def _fault(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    if first["type"] != "extra_forbidden":
        return fault_of(error)
    *where, key = map(str, first["loc"])
    tool = ToolConfig if where[:1] == ["tools"] else ServerConfig
    section: type[Section] = {0: ToolsFile, 2: tool, 3: WorkerConfig}.get(len(where), ToolsFile)
    known = [field.alias or name for name, field in section.model_fields.items()]
    close = get_close_matches(key, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"its keys are {', '.join(known)}"
    return f"unknown key {'.'.join((*where, key))} ({hint})"


def load_tools(path: Path) -> Toolbox:
    """Load the tools of a file and wait until their servers and workers are up.

    Raises:
        RequestError: the file, a tool, a server or a worker is unusable.
    """
    file, folder = read_tools_file(path), path.absolute().parent
    tools = [_make(ToolSource(name, config, folder)) for name, config in file.tools.items()]
    servers: list[McpServer] = []
    try:
        for name, config in file.servers.items():
            server = McpServer(name, config, folder)
            tools += server.start()
            servers.append(server)
        return Toolbox(by_name(tools, f" of {path}"), tuple(servers))
    except BaseException:
        Toolbox({}, tuple(servers)).close()
        raise


def _make(source: ToolSource) -> Tool:
    worker = source.config.worker
    return source.make() if worker is None else WorkerTool(source, worker)


def by_name(tools: Iterable[Tool], where: str = "") -> dict[str, Tool]:
    """Tools by name. Raises RequestError if two have the same name."""
    named: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in named:
            raise RequestError(f"two tools{where} are called {tool.name!r}: rename one, or give its server a prefix.")
        named[tool.name] = tool
    return named
