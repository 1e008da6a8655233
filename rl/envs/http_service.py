"""An HTTP service that an environment depends on: JSON in, JSON out, with a bounded number of tries.

An unreachable or overloaded (502, 503, 504) server, or a response that is not JSON, is a fault of the environment. A call that may already
have been carried out is only retried if that does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from rl.envs.base import EnvironmentFault, FaultKind
from warehouse.settings import Section

OVERLOADED = frozenset({502, 503, 504})
TRIES = 4
"""Number of requests to a server that is unreachable or overloaded before that is a fault."""
TRY_SECONDS = 50.0
"""Time for one try; the deadline of the call bounds all of them."""
FIRST_WAIT_SECONDS = 0.1
"""Wait before the second try; it doubles with each."""


class ServiceOptions(Section):
    """Options of environments and scorers over a server."""

    url: str
    """The server's address, such as `http://127.0.0.1:8000`."""


class Service:
    """A client of one server, shared by the environments of a worker, with its connections."""

    def __init__(self, options: ServiceOptions, headers: Mapping[str, str] | None = None, try_seconds: float = TRY_SECONDS) -> None:
        self._url = options.url.rstrip("/")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._client = httpx.AsyncClient(timeout=try_seconds, limits=limits, headers=headers, trust_env=False)

    async def get(self, path: str, **query: Any) -> Any:
        return await self._ask("GET", path, repeatable=True, params=query)

    async def post(self, path: str, body: Any = None, repeatable: bool = False) -> Any:
        """The response to a POST of `body`; `repeatable` if asking twice is the same as asking once.

        Raises:
            EnvironmentFault: there is no response, or it is an error.
        """
        return await self._ask("POST", path, repeatable, json=body)

    async def _ask(self, method: str, path: str, repeatable: bool, **arguments: Any) -> Any:
        wait, reason = FIRST_WAIT_SECONDS, ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(wait)
                wait *= 2
            try:
                response = await self._client.request(method, self._url + path, **arguments)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__} {error}".strip()
                if not repeatable and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    break
                continue
            if response.status_code not in OVERLOADED:
                return self._read(response)
            reason = f"status {response.status_code}"
        raise EnvironmentFault(f"{self._url}{path} does not answer: {reason}", FaultKind.UNREACHABLE)

    def _read(self, response: httpx.Response) -> Any:
        if response.is_error:
            raise EnvironmentFault(f"{response.url} answered {response.status_code}: {response.text[:200]}")
        try:
            return response.json()
        except ValueError as error:
            raise EnvironmentFault(f"{response.url} answered something that is not JSON: {response.text[:200]!r}") from error
