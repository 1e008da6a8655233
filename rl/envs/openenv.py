"""Environments of an OpenEnv server, a session per trajectory over its WebSocket.

A server of tools (MCP) offers them under their own names; any other offers one tool, `act`, whose arguments are the fields of its actions.
A reset gets the seed and what the task's provenance has under `reset`; rewards and the end are the server's. A session ends with its
connection, so that none outlives a killed worker. A server without a free session is asked again until `SESSION_SECONDS` have passed.

Reference: openenv-core 0.3, `core/env_server/http_server.py`, `types.py` and `mcp_types.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from rl.envs.base import EnvironmentFault, FaultKind, Observation, Resources, Step
from rl.envs.http_service import Service, ServiceOptions
from rl.envs.tool_use import StatefulEnvironment
from rl.tools.arguments import ArgumentsSchema
from rl.tools.config import CallRules
from rl.tools.tool import StatelessTool, ToolError, ToolResponse, check_name, to_response
from warehouse.records import Task

ACT = "act"
LARGEST_MESSAGE = 16 * 2**20
"""Bytes of a server's message."""
SESSION_SECONDS = 45.0
"""Seconds to wait for a free session."""
WAIT_SECONDS = 0.2
"""Seconds before a server without a free session is asked again; doubled each time, to at most `LONGEST_WAIT_SECONDS`."""
LONGEST_WAIT_SECONDS = 5.0
OPEN_SECONDS = 10.0
"""Seconds for a connection to open, and to close."""
_OF_POLICY = ("invalid_args", "execution_error", "tool_not_found")
"""Errors of an MCP tool that the policy may mend."""

Call = Callable[[Mapping[str, Any]], Awaitable[ToolResponse]]


class NoFreeSession(Exception):
    """The server has as many sessions as it allows."""


class Server(Service):
    """An OpenEnv server; the environments of a worker share what it says of its actions."""

    def __init__(self, options: ServiceOptions) -> None:
        super().__init__(options)
        self.socket = f"ws{self.url.removeprefix('http')}/ws"
        self._actions: dict[str, Any] | None = None

    async def actions(self) -> dict[str, Any]:
        """JSON schema of the environment's actions."""
        if self._actions is None:
            answer = await self.get("/schema")
            if not isinstance(answer, Mapping) or not isinstance(answer.get("action"), dict):
                raise EnvironmentFault(f"{self.url}/schema has no schema of actions: is this an OpenEnv server?")
            self._actions = answer["action"]
        return self._actions


class RemoteTool(StatelessTool):
    """A tool of one session."""

    def __init__(self, name: str, description: str, parameters: Mapping[str, Any], call: Call) -> None:
        """Raises RequestError if its name or schema is not allowed."""
        super().__init__(check_name(name, " of the OpenEnv server"), description, parameters, CallRules())
        self._arguments = ArgumentsSchema(parameters, name)
        self._call = call

    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        self._arguments.check(values)
        return await self._call(values)


class OpenEnvEnvironment(StatefulEnvironment):
    """One session on a server."""

    def __init__(self, server: Server) -> None:
        super().__init__({})
        self._server = server
        self._socket: ClientConnection | None = None
        self._reward: float | None = None
        self._done = False

    async def probe(self) -> None:
        await self._server.actions()

    async def reset(self, task: Task, seed: int) -> Observation:
        actions = await self._server.actions()
        own = task.provenance.get("reset")
        begun = await self._begin({"seed": seed, **(own if isinstance(own, Mapping) else {})})
        self._reward, self._done = None, False
        self.tools = {tool.name: tool for tool in await self._offered(actions)}
        return replace(await super().reset(task, seed), text=_shown(begun.get("observation")))

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    def _complete(self, step: Step) -> Step:
        reward, self._reward = self._reward, None
        return replace(step, reward=reward, done=step.done or self._done)

    async def _begin(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Open a session and reset it."""
        until, wait = time.monotonic() + SESSION_SECONDS, WAIT_SECONDS
        while True:
            try:
                self._socket = await connect(
                    self._server.socket, open_timeout=OPEN_SECONDS, close_timeout=OPEN_SECONDS, max_size=LARGEST_MESSAGE, proxy=None
                )
                return await self._ask("reset", arguments)
            except NoFreeSession as error:
                await self.close()
                if time.monotonic() + wait > until:
                    text = f"{self._server.url} has no free session ({error}): raise its max_concurrent_envs, or lower rollout.concurrency"
                    raise EnvironmentFault(text, FaultKind.UNREACHABLE) from error
            except (OSError, TimeoutError, WebSocketException) as error:
                raise EnvironmentFault(f"{self._server.socket} cannot be reached: {error}", FaultKind.UNREACHABLE) from error
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    async def _offered(self, actions: Mapping[str, Any]) -> list[RemoteTool]:
        fields = {name: field for name, field in actions.get("properties", {}).items() if name != "metadata"}
        if fields and not {"tool_name", "arguments"} <= fields.keys():
            schema = {**actions, "properties": fields}
            return [RemoteTool(ACT, str(actions.get("description") or "Act in the environment."), schema, self._act)]
        listed: Any = (await self._ask("step", {"type": "list_tools"})).get("observation")
        try:
            return [
                RemoteTool(one["name"], str(one["description"]), one["input_schema"], self._caller(one["name"])) for one in listed["tools"]
            ]
        except (TypeError, KeyError) as error:
            raise EnvironmentFault(f"{self._server.url} does not list its tools: {str(listed)[:200]}") from error

    async def _act(self, values: Mapping[str, Any]) -> ToolResponse:
        return to_response(_shown(await self._step(dict(values))), CallRules())

    def _caller(self, name: str) -> Call:
        async def call(values: Mapping[str, Any]) -> ToolResponse:
            seen = await self._step({"type": "call_tool", "tool_name": name, "arguments": dict(values)})
            seen = seen if isinstance(seen, Mapping) else {}
            if isinstance(error := seen.get("error"), Mapping):
                if error.get("error_type") in _OF_POLICY:
                    raise ToolError(str(error.get("message")))
                raise EnvironmentFault(f"the tool {name!r} of {self._server.url} failed: {str(error)[:200]}")
            return to_response(_text_of(seen.get("result")), CallRules())

        return call

    async def _step(self, action: Mapping[str, Any]) -> Any:
        answer = await self._ask("step", action)
        reward = answer.get("reward")
        if reward is not None and not (isinstance(reward, int | float) and isfinite(reward)):
            raise EnvironmentFault(f"{self._server.url} paid {reward!r:.100}, which is no number")
        self._reward, self._done = None if reward is None else float(reward), answer.get("done") is True
        return answer.get("observation")

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the data of the answer.

        Raises:
            ToolError: the server refuses the action's form.
            NoFreeSession: it opened none.
            EnvironmentFault: it fails, or the session ended.
        """
        assert self._socket is not None
        with suppress(ConnectionClosed):  # it may have said why
            await self._socket.send(json.dumps({"type": kind, "data": data}))
        try:
            received = await self._socket.recv()
        except WebSocketException as error:
            raise EnvironmentFault(f"{self._server.url} ended the session: {error}", FaultKind.UNREACHABLE) from error
        try:
            answer = json.loads(received)
        except (ValueError, RecursionError):
            answer = None
        told = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(told, dict):
            raise EnvironmentFault(f"{self._server.url} answered {kind} in an unknown form: {str(received)[:200]}")
        if answer.get("type") != "error":
            return told
        code, message = told.get("code"), str(told.get("message"))[:500]
        if code == "CAPACITY_REACHED":
            raise NoFreeSession(message)
        if code == "VALIDATION_ERROR" and kind == "step":
            raise ToolError(message)
        raise EnvironmentFault(f"{self._server.url} answered {kind} with {code}: {message}")


def _text_of(result: Any) -> Any:
    """What an MCP tool returned: its texts, or the JSON of another result."""
    blocks = result.get("content") if isinstance(result, Mapping) else None
    texts = [str(block["text"]) for block in blocks if isinstance(block, Mapping) and "text" in block] if isinstance(blocks, list) else []
    return "\n".join(texts) if texts else result


def _shown(observation: Any) -> str:
    """The only text of an observation, or its fields that are not empty as JSON."""
    if not isinstance(observation, Mapping):
        return "" if observation is None else str(observation)
    filled = {name: value for name, value in observation.items() if value not in (None, "", [], {})}
    if len(filled) == 1 and isinstance(text := next(iter(filled.values())), str):
        return text
    return json.dumps(filled, ensure_ascii=False) if filled else ""


def create(resources: Resources) -> OpenEnvEnvironment:
    options = resources.read(ServiceOptions)
    return OpenEnvEnvironment(resources.once("server", lambda: Server(options)))
