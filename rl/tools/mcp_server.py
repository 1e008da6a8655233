"""MCP servers: their tools, over one session that all trajectories of a process share.

A session lives in a thread with a loop of its own, because the library wants it closed by the task that opened it, and because a large
message takes its time to read. After a fault the next call opens a new session; the old one ends with the last call that is under way on
it, and a server that died or hangs is so started again. Library: `mcp`, the protocol's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rl.tools.arguments import ArgumentsSchema
from rl.tools.calls import within
from rl.tools.config import CallRules, ServerConfig
from rl.tools.mcp_session import INVALID_PARAMS, Session, client_maker, is_answer
from rl.tools.results import ToolError, ToolFault, ToolResponse, ToolTimeout, to_response
from rl.tools.tool import StatelessTool, Tool, check_name
from warehouse.errors import RequestError, with_type

if TYPE_CHECKING:
    from mcp_types import CallToolResult
    from mcp_types import Tool as ServerTool
import base64
import binascii
from typing import TYPE_CHECKING

from rl.content import ContentPart, ImagePart, TextPart
from rl.tools.results import ToolResult

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

T = TypeVar("T")
MAX_PAGES = 100
"""Pages of a list of tools that are read: a server may have no last one."""
END_SECONDS = 10.0
"""How long whatever is under way may take to end with its server."""


class McpServer:
    """A server by its configuration; `start` makes its tools."""

    def __init__(self, name: str, config: ServerConfig, folder: Path) -> None:
        """`name` is for messages; a command runs in `folder`."""
        self.name, self.config = name, config
        self._make = client_maker(name, config, folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"mcp-{name}", daemon=True)
        self._session: Session | None = None
        self._opening = asyncio.Lock()

    def start(self) -> list[Tool]:
        """Open the session and make the tools that the configuration takes. Blocks.

        Raises:
            RequestError: where the server does not come up, or has not what the configuration names.
        """
        self._thread.start()
        try:
            listed = self._run(self._list()).result(self.config.start_timeout_seconds)
            return [McpTool(self, one) for one in self._selected(listed)]
        except RequestError:
            self.close()
            raise
        except FutureTimeout:
            self.close()
            raise RequestError(f"the MCP server {self.name!r} was not up after {self.config.start_timeout_seconds:g} seconds.") from None
        except Exception as error:
            self.close()
            raise RequestError(f"the MCP server {self.name!r} cannot be started: {with_type(error)}.") from error

    async def call(self, name: str, values: Mapping[str, Any]) -> CallToolResult:
        """Call a tool by the server's name for it."""
        seconds = self.config.timeout_seconds
        # The session gives up first and tells the server; to start a server again takes its own time.
        most = seconds + END_SECONDS + self.config.start_timeout_seconds
        return await within(asyncio.wrap_future(self._run(self._call(name, values, seconds))), most)

    async def check_alive(self) -> None:
        """Ask for the list of tools, which any server has; raises where it does not come."""
        seconds = self.config.timeout_seconds + self.config.start_timeout_seconds
        await within(asyncio.wrap_future(self._run(self._list())), seconds)

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
        async with (await self._opened()).use(self.config.start_timeout_seconds) as client:
            tools, cursor = [], None
            for _ in range(MAX_PAGES):
                page = await client.list_tools(cursor=cursor, cache_mode="refresh")
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
            return tools

    async def _call(self, name: str, values: Mapping[str, Any], seconds: float) -> CallToolResult:
        async with (await self._opened()).use(seconds + END_SECONDS) as client:
            return await client.call_tool(name, dict(values), read_timeout_seconds=seconds)

    async def _opened(self) -> Session:
        """The session, a new one where the last is retired."""
        async with self._opening:
            if self._session is None or self._session.retired:
                self._session = await asyncio.wait_for(Session.open(self._make()), self.config.start_timeout_seconds)
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

    def _selected(self, listed: list[ServerTool]) -> list[ServerTool]:
        names = {one.name for one in listed}
        missing = [name for name in [*(self.config.only or ()), *self.config.probes] if name not in names]
        if missing:
            raise RequestError(f"the MCP server {self.name!r} has no tool {missing[0]!r}, only {', '.join(sorted(names)) or 'none'}.")
        return listed if self.config.only is None else [one for one in listed if one.name in self.config.only]


class McpTool(StatelessTool):
    """A tool of an MCP server."""

    def __init__(self, server: McpServer, listed: ServerTool) -> None:
        """Raises `RequestError` where its name or its schema is not allowed."""
        name = check_name(f"{server.config.prefix}{listed.name}", f" of the MCP server {server.name!r}")
        self._server, self._name = server, listed.name
        self._arguments = ArgumentsSchema(listed.input_schema, name)
        limits = {field: getattr(server.config, field) for field in CallRules.model_fields if field != "probe"}
        rules = CallRules(**limits, probe=server.config.probes.get(listed.name))
        super().__init__(name, listed.description or "", listed.input_schema, rules)

    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        """Call it over the session."""
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
        """See that the server answers."""
        await self._server.check_alive()


def read_result(result: CallToolResult) -> ToolResult:
    """The result of a server's tool, as parts where there is more than text in it."""
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
