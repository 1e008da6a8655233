"""Tools of MCP servers, over one session per server that all trajectories of a process share.

A session runs in a thread with its own event loop, because the library requires it to be closed by the task that opened it, and large
messages take time to parse. After a fault the next call opens a new session, which restarts a server that died or hangs; the old session
closes with its last call. Library: `mcp`, imported only when a client is created.
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
from rl.tools.arguments import ArgumentsSchema
from rl.tools.calls import within
from rl.tools.config import CallRules, ServerConfig
from rl.tools.deadline import deadline
from rl.tools.tool import StatelessTool, Tool, ToolError, ToolFault, ToolResponse, ToolResult, ToolTimeout, check_name, to_response
from warehouse.errors import RequestError, with_type

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult, ContentBlock
    from mcp_types import Tool as ServerTool

T = TypeVar("T")

INVALID_PARAMS = -32602
"""JSON-RPC code for invalid parameters."""
_UNANSWERED = frozenset({-32000, -32001, -32600, -32601, -32700})
"""Codes that the library uses for a closed connection, a timeout, or an invalid HTTP response."""
_HTTP_FAULT = "Server returned an error response"
"""The library's message for HTTP statuses from 500; its code is also used by servers."""


class Session:
    """A client held open by one task, as the library requires, until it is retired and unused."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.retired = False
        self._users = 0
        self._over = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, client: Client) -> Session:
        """Open a session and complete its handshake."""
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
        """Close the session, even if it is in use."""
        self._over.set()
        if self._holder is not None:
            await asyncio.wait({self._holder})

    @asynccontextmanager
    async def use(self, seconds: float) -> AsyncIterator[Client]:
        """Yield the client for one call of at most `seconds`.

        Any error except the server's own answer retires the session, which closes once it is unused. A cancelled call does not retire it.
        """
        self._users += 1
        try:
            async with asyncio.timeout(seconds):
                yield self.client
        except Exception as error:
            self.retired |= not is_answer(error)
            raise
        finally:
            self._users -= 1
            if self.retired and not self._users:
                self._over.set()

    async def _hold(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self.client:
                ready.set_result(None)
                await self._over.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
            # Otherwise a server died, and the running call raises its own error.


def is_answer(error: Exception) -> bool:
    """Whether an error is the server's answer rather than a transport fault."""
    from mcp import MCPError

    return isinstance(error, MCPError) and error.code not in _UNANSWERED and error.message != _HTTP_FAULT


def client_maker(name: str, config: ServerConfig, folder: Path) -> Callable[[], Client]:
    """A factory of unopened clients. Raises RequestError if an environment variable is missing."""
    env, headers = _filled(name, config.env), _filled(name, config.headers)
    command = None if config.command is None else [_filled(name, {"": part})[""] for part in config.command]

    def make() -> Client:
        from mcp import Client, StdioServerParameters, stdio_client

        if command is None:
            return Client(_over_http(str(config.url), headers) if headers else str(config.url))
        program = sys.executable if command[0] == "python" else command[0]
        parameters = StdioServerParameters(command=program, args=command[1:], env=env, cwd=folder)
        return Client(stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr))

    return make


@asynccontextmanager
async def _over_http(url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    async with create_mcp_http_client(headers=dict(headers)) as http, streamable_http_client(url, http_client=http) as streams:
        yield streams


def _filled(name: str, texts: Mapping[str, str]) -> dict[str, str]:
    try:
        return {key: Template(text).substitute(os.environ) for key, text in texts.items()}
    except KeyError as error:
        raise RequestError(f"the MCP server {name!r} needs the environment variable {error.args[0]}, which is not set.") from error
    except ValueError as error:
        raise RequestError(f"the MCP server {name!r} has an invalid variable: write ${{NAME}}, and $$ for a dollar sign.") from error


MAX_PAGES = 100
"""Maximum pages of a tool list, since a server might never stop."""
START_SECONDS = 60.0
"""Maximum seconds for a server to start, or to list its tools."""
END_SECONDS = 10.0
"""Seconds for running calls to end with their server."""


class McpServer:
    """A configured server; `start` creates its tools."""

    def __init__(self, name: str, config: ServerConfig, folder: Path) -> None:
        """`name` is for messages; a command runs in `folder`."""
        self.name, self.config = name, config
        self._make = client_maker(name, config, folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"mcp-{name}", daemon=True)
        self._session: Session | None = None
        self._opening = asyncio.Lock()

    def start(self) -> list[Tool]:
        """Open the session and create the configured tools. Blocks.

        Raises:
            RequestError: the server does not come up, or lacks a configured tool.
        """
        self._thread.start()
        try:
            listed = self._run(self._list()).result(START_SECONDS)
            return [McpTool(self, one) for one in self._selected(listed)]
        except RequestError:
            self.close()
            raise
        except FutureTimeout:
            self.close()
            raise RequestError(f"the MCP server {self.name!r} did not start within {START_SECONDS:g} seconds.") from None
        except Exception as error:
            self.close()
            raise RequestError(f"the MCP server {self.name!r} cannot be started: {with_type(error)}.") from error

    async def call(self, name: str, values: Mapping[str, Any]) -> CallToolResult:
        """Call a tool by its name on the server; restarting the server does not count towards the tool's time limit."""
        most = START_SECONDS + self.config.timeout_seconds + END_SECONDS
        return await within(asyncio.wrap_future(self._run(self._call(name, values))), most)

    async def check_alive(self) -> None:
        """List the tools, which every server supports; raises if that fails."""
        await within(asyncio.wrap_future(self._run(self._list())), START_SECONDS + self.config.timeout_seconds)

    def close(self) -> None:
        """End the session (and with it the command) and the thread."""
        if self._loop.is_closed():
            return
        self._run(self._end()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _list(self) -> list[ServerTool]:
        async with (await self._opened()).use(START_SECONDS) as client:
            tools, cursor = [], None
            for _ in range(MAX_PAGES):
                page = await client.list_tools(cursor=cursor, cache_mode="refresh")
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
            return tools

    async def _call(self, name: str, values: Mapping[str, Any]) -> CallToolResult:
        session = await self._opened()
        with deadline(self.config.timeout_seconds) as limit:  # shorter than the session's limit, so that the client can notify the server
            async with session.use(limit.remaining + END_SECONDS) as client:
                return await client.call_tool(name, dict(values), read_timeout_seconds=limit.remaining)

    async def _opened(self) -> Session:
        async with self._opening:
            if self._session is None or self._session.retired:
                self._session = await asyncio.wait_for(Session.open(self._make()), START_SECONDS)
            return self._session

    async def _end(self) -> None:
        if self._session is not None:
            await self._session.end()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=END_SECONDS)

    def _selected(self, listed: list[ServerTool]) -> list[ServerTool]:
        names = {one.name for one in listed}
        missing = [name for name in [*(self.config.only or ()), *self.config.probes] if name not in names]
        if missing:
            raise RequestError(f"the MCP server {self.name!r} has no tool {missing[0]!r}, only {', '.join(sorted(names)) or 'none'}.")
        return listed if self.config.only is None else [one for one in listed if one.name in self.config.only]


class McpTool(StatelessTool):
    """A tool of an MCP server."""

    def __init__(self, server: McpServer, listed: ServerTool) -> None:
        """Raises RequestError if its name or schema is not allowed."""
        name = check_name(f"{server.config.prefix}{listed.name}", f" of the MCP server {server.name!r}")
        self._server, self._name = server, listed.name
        self._arguments = ArgumentsSchema(listed.input_schema, name)
        limits = {field: getattr(server.config, field) for field in CallRules.model_fields if field != "probe"}
        rules = CallRules(**limits, probe=server.config.probes.get(listed.name))
        super().__init__(name, listed.description or "", listed.input_schema, rules)

    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        from mcp import MCPError
        from mcp_types import REQUEST_TIMEOUT

        self._arguments.check(values)
        try:
            result = await self._server.call(self._name, values)
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolError(f"wrong arguments for {self.name}: {error}") from error
            if is_answer(error):
                raise self._refusal(error.message) from error
            if error.code == REQUEST_TIMEOUT:
                raise ToolTimeout(f"it took longer than {self.rules.timeout_seconds:g} seconds") from error
            raise
        response = to_response(read_result(result), self.rules)
        if result.is_error:
            raise self._refusal(response.text)
        return response

    def _refusal(self, text: str) -> ToolFault | ToolError:
        return ToolFault(text) if self._server.config.errors_are_faults else ToolError(text)

    async def examine(self) -> None:
        await self._server.check_alive()


def read_result(result: CallToolResult) -> ToolResult:
    """Convert a server's result, to parts if it contains more than text."""
    parts = [_part(block) for block in result.content]
    if not parts:
        return ToolResult(json=result.structured_content)
    if all(isinstance(part, TextPart) for part in parts):
        return ToolResult(text="\n".join(part.text for part in parts if isinstance(part, TextPart)))
    return ToolResult(parts=tuple(parts))


def _part(block: ContentBlock) -> ContentPart:
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
        raise ToolFault(f"its image is not valid base64: {error}") from error
