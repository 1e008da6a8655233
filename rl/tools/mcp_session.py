"""Sessions with MCP servers: how a client is made, held open by one task, used by many calls, and given up after a fault.

Library: `mcp`, the protocol's own. It is imported where a client is made, so that nobody else pays for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from rl.tools.config import ServerConfig
from warehouse.errors import RequestError

if TYPE_CHECKING:
    from mcp import Client

INVALID_PARAMS = -32602
"""JSON-RPC's code of a wrong call."""
_UNANSWERED = frozenset({-32000, -32001, -32600, -32601, -32700})
"""Codes that the library gives a closed connection, a call that ran out of time, and what HTTP brought in the place of an answer."""
_HTTP_FAULT = "Server returned an error response"
"""What the library says of an HTTP status of 500 and above, with a code that servers give their own errors too."""
HTTP_SECONDS, HTTP_READ_SECONDS = 30.0, 300.0
"""How long a server may take to accept a request, and between two pieces of an answer; the library's own values."""


class Session:
    """A client that one task holds open, as the library demands, until it is retired and nobody uses it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.retired = False
        self._users = 0
        self._over = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, client: Client) -> Session:
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

    @asynccontextmanager
    async def use(self, seconds: float) -> AsyncIterator[Client]:
        """The client for one call of so many seconds at most.

        Any error but one that the server answered retires the session, which closes when nobody uses it any more; a call that its caller
        cancels says nothing of the server.
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
            # Otherwise a server died: the call that was under way has raised its own error.


def is_answer(error: Exception) -> bool:
    """Whether an error is what the server answered, and no fault of the way to it."""
    from mcp import MCPError

    return isinstance(error, MCPError) and error.code not in _UNANSWERED and error.message != _HTTP_FAULT


def client_maker(name: str, config: ServerConfig, folder: Path) -> Callable[[], Client]:
    """What makes a client that is not open yet; the library is loaded here, where a server is named."""
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
