"""HTTP service that an environment depends on: JSON requests and responses with a bounded number of tries.

An unreachable or overloaded (502, 503, 504) server, or a response that is not JSON, is a fault of the environment. A request that may
already have been executed is retried only if it is repeatable.
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
"""Maximum number of tries of a request to an unreachable or overloaded server."""
TRY_SECONDS = 50.0
"""Timeout of one try, in seconds; the deadline of the call bounds all of them."""
FIRST_WAIT_SECONDS = 0.1
"""Seconds before the second try; doubled for each further one."""


class ServiceOptions(Section):
    """Options of environments and scorers that use a server."""

    url: str
    """Address of the server, such as `http://127.0.0.1:8000`."""


class Service:
    """Client of one server with its connections, shared by the environments of a worker."""

    def __init__(self, options: ServiceOptions, headers: Mapping[str, str] | None = None, try_seconds: float = TRY_SECONDS) -> None:
        self.url = options.url.rstrip("/")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._client = httpx.AsyncClient(timeout=try_seconds, limits=limits, headers=headers, trust_env=False)

    async def get(self, path: str, **query: Any) -> Any:
        return await self._ask("GET", path, repeatable=True, params=query)

    async def post(self, path: str, body: Any = None, repeatable: bool = False) -> Any:
        """POST `body` and return the JSON response; `repeatable` if executing the request twice does no harm.

        Raises:
            EnvironmentFault: no response, or an error response.
        """
        return await self._ask("POST", path, repeatable, json=body)

    async def _ask(self, method: str, path: str, repeatable: bool, **arguments: Any) -> Any:
        wait, reason = FIRST_WAIT_SECONDS, ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(wait)
                wait *= 2
            try:
                response = await self._client.request(method, self.url + path, **arguments)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__} {error}".strip()
                if not repeatable and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    break
                continue
            if response.status_code not in OVERLOADED:
                return self._read(response)
            reason = f"status {response.status_code}"
        raise EnvironmentFault(f"{self.url}{path} does not answer: {reason}", FaultKind.UNREACHABLE)

    def _read(self, response: httpx.Response) -> Any:
        if response.is_error:
            raise EnvironmentFault(f"{response.url} answered {response.status_code}: {response.text[:200]}")
        try:
            return response.json()
        except ValueError as error:
            raise EnvironmentFault(f"{response.url} returned invalid JSON: {response.text[:200]!r}") from error
