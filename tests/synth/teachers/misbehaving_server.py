"""A real HTTP server that speaks the OpenAI protocol and does with each request what its script says."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[dict[str, Any]], str]


def echo(body: dict[str, Any]) -> str:
    """The last message, back."""
    return f"echo {body['messages'][-1]['content']}"


@dataclass
class MisbehavingServer:
    """Plays `script`, one word a request, then behaves: `429`, `429:SECONDS` (Retry-After), `500`, `hang`, `reset`, `nonsense`,
    `no-choices`, `empty`, `cut`, `401`, `400`, `quota`, `well`."""

    script: list[str] = field(default_factory=list)
    answer: Answer = echo
    slow_seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    url: str = ""

    def __enter__(self) -> MisbehavingServer:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        application = web.Application()
        application.router.add_post("/v1/chat/completions", self._handle)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.times.append(time.monotonic())
        self.bodies.append(body)
        act = self.script.pop(0) if self.script else "well"
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.slow_seconds)
            return await self._act(act, request, body)
        finally:
            self.in_flight -= 1

    async def _act(self, act: str, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        kind, _, value = act.partition(":")
        if kind == "hang":
            await asyncio.sleep(30)
        if kind == "reset" and request.transport is not None:
            request.transport.abort()
        if kind == "nonsense":
            return web.Response(text='{"choices": [{"mess', content_type="application/json")
        if kind == "no-choices":
            return web.json_response({"choices": [], "error": "overloaded"})
        if kind == "quota":
            return web.json_response({"error": {"code": "insufficient_quota", "message": "no money"}}, status=429)
        if kind.isdigit():
            return web.json_response(
                {"error": {"message": f"status {kind}"}}, status=int(kind), headers={"Retry-After": value} if value else {}
            )
        text = "" if kind == "empty" else self.answer(body)
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "length" if kind == "cut" else "stop"}
        usage = {"prompt_tokens": len(json.dumps(body["messages"])) // 4, "completion_tokens": 5}
        return web.json_response({"choices": [choice], "usage": usage})
