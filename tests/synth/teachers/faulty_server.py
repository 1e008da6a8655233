"""A real HTTP server that answers as models do: so many of its replies are late, cut, chatty, fenced, in other keys, refusals, repetitions.

Which request meets which fault follows from its body. What keeps a reply from arriving does so once; the text is the same whenever it
comes, so a run that was killed is told what another one is told. The server keeps account of what it would bill: of every text it wrote.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse.digests import digest

ONCE = ("late", "torn", "500")
"""What keeps a reply from arriving."""
FAULTS = (*ONCE, "cut", "chatty", "fenced", "keys", "refusal", "repetition")
_REFUSAL = "I'm sorry, but I can't help with that request."
_KEY = re.compile(r'"(\w+)":')


@dataclass
class FaultyServer(MisbehavingServer):
    """Behaves but for a share of faults; `late_seconds` must be more than the client waits."""

    share: float = 0.3
    seed: int = 0
    late_seconds: float = 3.0
    reports: bool = True
    """Whether it says what a reply cost."""
    billed: int = 0
    met: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    arrived: Counter[str] = field(default_factory=Counter)
    """How often a request was asked, and how often a text was sent for it whole, by the digest of its body."""

    async def _act(self, act: str, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if act != "well":
            return await super()._act(act, request, body)
        key = digest(body)
        self.asked[key] += 1
        fault = self._fault(key)
        self.met[fault] += 1
        if fault == "500":
            return web.json_response({"error": {"message": "status 500"}}, status=500)
        text = _changed(fault, self.answer(body))
        if fault == "cut":
            text = text[: len(text) // 2]
        usage = {"prompt_tokens": len(json.dumps(body["messages"])) // 4, "completion_tokens": min(body["max_tokens"], len(text) // 3 + 1)}
        self.billed += sum(usage.values())
        if fault == "late":
            await asyncio.sleep(self.late_seconds)
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "length" if fault == "cut" else "stop"}
        reply = json.dumps({"choices": [choice], **({"usage": usage} if self.reports else {})}).encode()
        if fault == "torn":
            return await _torn(request, reply)
        self.arrived[key] += fault != "late"
        return web.Response(body=reply, content_type="application/json")

    def _fault(self, key: str) -> str:
        chance = random.Random(f"{self.seed} {key}")
        fault = chance.choice(FAULTS) if chance.random() < self.share else "well"
        return "well" if fault in ONCE and self.asked[key] > 1 else fault


def _changed(fault: str, text: str) -> str:
    """The text as a model writes it that has this fault."""
    match fault:
        case "chatty":
            return f"Sure! Here is what you asked for:\n\n{text}\n\nLet me know if there is anything else."
        case "fenced":
            return f"```json\n{text}\n```"
        case "keys":
            return _KEY.sub(lambda found: f'"the_{found[1]}":', text) if _KEY.search(text) else f"Hm. {text}"
        case "refusal":
            return _REFUSAL
        case "repetition":
            return "\n".join([text] * 6)
    return text


async def _torn(request: web.Request, reply: bytes) -> web.StreamResponse:
    """Half of the reply, and then the connection breaks."""
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(reply))})
    await response.prepare(request)
    await response.write(reply[: len(reply) // 2])
    if request.transport is not None:
        request.transport.abort()
    return response
