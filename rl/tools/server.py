"""MCP servers: their tools, over one session that all trajectories of a process share.

A session lives in a thread with a loop of its own, because the library wants it closed by the task that opened it, and because a large
message takes its time to read. After a fault the next call opens a new session; the old one ends with the last call that is under way on
it, and a server that died or hangs is so started again. Library: `mcp`, the protocol's own.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, TypeVar

from rl.content import ContentPart, ImagePart, TextPart
from rl.tools.config import CallRules, ServerConfig
from rl.tools.errors import ToolError, ToolFault, ToolTimeout, one_line
from rl.tools.results import Shown, ToolResult, show
from rl.tools.running import within
from rl.tools.schemas import ArgumentsSchema
from rl.tools.tool import OpenTool, Stateless, Tool, check_name
from warehouse.errors import RequestError

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult, ContentBlock
    from mcp_types import Tool as ServerTool

T = TypeVar("T")
MAX_PAGES = 100
"""Pages of a list of tools that are read: a server may have no last one."""
HTTP_SECONDS, HTTP_READ_SECONDS = 30.0, 300.0
"""How long a server may take to accept a request, and between two pieces of an answer; the library's own values."""
END_SECONDS = 10.0
"""How long whatever is under way may take to end with its server."""
INVALID_PARAMS = -32602
"""JSON-RPC's code of a wrong call."""


class McpServer:
    """A server by its configuration; `start` makes its tools."""

    def __init__(self, name: str, config: ServerConfig, folder: Path) -> None:
        """`name` is for messages; a command runs in `folder`."""
        self.name, self.config = name, config
        self._make = _client_maker(name, config, folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"mcp-{name}", daemon=True)
        self._session: _Session | None = None
        self._opening = asyncio.Lock()

    def start(self) -> list[Tool]:
        """Open the session and make the tools that the configuration takes. Blocks.

        Raises:
            RequestError: where the server does not come up, or has not what the configuration names.
        """
        self._thread.start()
        try:
            listed = self._run(self._list()).result(self.config.start_timeout_seconds)
            return [McpTool(self, one) for one in self._taken(listed)]
        except RequestError:
            self.close()
            raise
        except FutureTimeout:
            self.close()
            raise RequestError(f"the MCP server {self.name!r} was not up after {self.config.start_timeout_seconds:g} seconds.") from None
        except Exception as error:
            self.close()
            raise RequestError(f"the MCP server {self.name!r} cannot be started: {_cause(error)}.") from error

    async def call(self, name: str, values: Mapping[str, Any]) -> CallToolResult:
        """Call a tool by the server's name for it."""
        seconds = self.config.timeout_seconds
        # The session gives up first and tells the server; the second more is for a loop that is stuck.
        return await within(asyncio.wrap_future(self._run(self._call(name, values, seconds))), seconds + 1.0)

    async def alive(self) -> None:
        """Ask for the list of tools, which any server has; raises where it does not come."""
        await within(asyncio.wrap_future(self._run(self._list())), self.config.timeout_seconds)

    def close(self) -> None:
        """End the session, with it the command, and the thread."""
        if self._loop.is_closed():
            return
        self._run(self._end()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _list(self) -> list[ServerTool]:
        async with _Use(await self._opened()) as client:
            tools, cursor = [], None
            for _ in range(MAX_PAGES):
                page = await client.list_tools(cursor=cursor, cache_mode="refresh")
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
            return tools

    async def _call(self, name: str, values: Mapping[str, Any], seconds: float) -> CallToolResult:
        async with _Use(await self._opened()) as client:
            return await client.call_tool(name, dict(values), read_timeout_seconds=seconds)

    async def _opened(self) -> _Session:
        """The session, a new one where the last is retired."""
        async with self._opening:
            if self._session is None or self._session.retired:
                self._session = await _Session.open(self._make())
            return self._session

    async def _end(self) -> None:
        """Close the session, and drop what is still under way: a start that took too long."""
        if self._session is not None:
            await self._session.end()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=END_SECONDS)

    def _taken(self, listed: list[ServerTool]) -> list[ServerTool]:
        names = {one.name for one in listed}
        missing = [name for name in [*(self.config.only or ()), *self.config.probes] if name not in names]
        if missing:
            raise RequestError(f"the MCP server {self.name!r} has no tool {missing[0]!r}, only {', '.join(sorted(names)) or 'none'}.")
        return listed if self.config.only is None else [one for one in listed if one.name in self.config.only]


class McpTool(Stateless, Tool):
    """A tool of an MCP server."""

    def __init__(self, server: McpServer, listed: ServerTool) -> None:
        """Raises `RequestError` where its name or its schema is of no use."""
        name = check_name(f"{server.config.prefix}{listed.name}", f" of the MCP server {server.name!r}")
        self._server, self._name = server, listed.name
        self._arguments = ArgumentsSchema(listed.input_schema, name)
        limits = {field: getattr(server.config, field) for field in CallRules.model_fields if field != "probe"}
        rules = CallRules(**limits, probe=server.config.probes.get(listed.name))
        super().__init__(name, listed.description or "", listed.input_schema, rules)

    async def open(self, trajectory_id: str, seed: int) -> OpenTool:
        """Itself: what state there is, the server keeps."""
        return self

    async def call(self, values: Mapping[str, Any]) -> Shown:
        """Call it over the session."""
        from mcp import MCPError
        from mcp_types import REQUEST_TIMEOUT

        self._arguments.check(values)
        try:
            result = await self._server.call(self._name, values)
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolError(f"wrong arguments for {self.name}: {error}") from error
            if error.code == REQUEST_TIMEOUT:
                raise ToolTimeout(f"it took longer than {self.rules.timeout_seconds:g} seconds") from error
            raise
        shown = show(_result(result), self.rules.bounds)
        if result.is_error:
            raise (ToolFault if self._server.config.errors_are_faults else ToolError)(shown.text)
        return shown

    async def examine(self) -> None:
        """See that the server answers."""
        await self._server.alive()


class _Session:
    """A client that one task holds open, as the library demands, until it is retired and nobody uses it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.retired = False
        self.users = 0
        self._over = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, client: Client) -> _Session:
        """A session whose handshake is done."""
        session = cls(client)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session._holder = asyncio.create_task(session._hold(ready))
        try:
            await ready
        except BaseException:
            session._holder.cancel()
            raise
        return session

    async def end(self) -> None:
        """Close it, whoever uses it."""
        self._over.set()
        if self._holder is not None:
            await asyncio.wait({self._holder})

    def release_if_unused(self) -> None:
        """Close it, where it is retired and nobody uses it."""
        if self.retired and not self.users:
            self._over.set()

    async def _hold(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self.client:
                ready.set_result(None)
                await self._over.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
            # Otherwise it is how a server that died leaves; whoever called it was told already.


class _Use:
    """A call on a session; one that ends in an error retires it."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def __aenter__(self) -> Client:
        self._session.users += 1
        return self._session.client

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._session.users -= 1
        wrong_call = getattr(error, "code", None) == INVALID_PARAMS
        self._session.retired |= error is not None and not wrong_call
        self._session.release_if_unused()


def _result(result: CallToolResult) -> ToolResult:
    """What a server gave, as parts where there is more than text in it."""
    parts = [_part(block) for block in result.content]
    if not parts:
        return ToolResult(json=result.structured_content)
    if all(isinstance(part, TextPart) for part in parts):
        return ToolResult(text="\n".join(part.text for part in parts if isinstance(part, TextPart)))
    return ToolResult(parts=tuple(parts))


def _part(block: ContentBlock) -> ContentPart:
    """A block as a part; what is neither text nor an image is named and left out."""
    if block.type == "text":
        return TextPart(block.text)
    if block.type == "image":
        return ImagePart(_bytes(block.data), block.mime_type)
    if block.type == "audio":
        return TextPart(f"[{block.mime_type} left out]")
    if block.type == "resource_link":
        return TextPart(f"[{block.uri}]")
    text = getattr(block.resource, "text", None)
    return TextPart(f"[{block.resource.uri} left out]" if text is None else text)


def _bytes(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ToolFault(f"its image is no base64: {error}") from error


def _client_maker(name: str, config: ServerConfig, folder: Path) -> Callable[[], Client]:
    """What makes a client that is not open yet; the library is loaded here, where a server is named."""
    env, headers = _filled(name, config.env), _filled(name, config.headers)
    command = None if config.command is None else [_filled(name, {"": part})[""] for part in config.command]

    def make() -> Client:
        from mcp import Client, StdioServerParameters, stdio_client

        if command is None:
            return Client(_over_http(str(config.url), headers) if headers else str(config.url))
        parameters = StdioServerParameters(command=command[0], args=command[1:], env=env, cwd=folder)
        return Client(stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr))

    return make


@asynccontextmanager
async def _over_http(url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    """The streams of a server behind `url`, with headers on each request."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    timeout = httpx2.Timeout(HTTP_SECONDS, read=HTTP_READ_SECONDS)
    async with httpx2.AsyncClient(headers=dict(headers), timeout=timeout) as http, streamable_http_client(url, http_client=http) as streams:
        yield streams


def _filled(name: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Texts with the variables of the environment that they name."""
    try:
        return {key: Template(text).substitute(os.environ) for key, text in texts.items()}
    except KeyError as error:
        raise RequestError(f"the MCP server {name!r} wants the environment variable {error.args[0]}, which is not set.") from error
    except ValueError as error:
        raise RequestError(f"the MCP server {name!r} names a variable wrongly: write ${{NAME}}, and $$ for a dollar sign.") from error


def _cause(error: BaseException) -> str:
    """The first error in a group of them: tasks that fail together raise one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return one_line(error)
