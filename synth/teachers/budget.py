"""What may be spent on a teacher: requests and tokens, never exceeded, whatever runs side by side.

Before a try the most that it can cost is set aside, and afterwards what it did cost is booked. A byte-level tokenizer makes no more
tokens than there are bytes, so the bound holds without knowing the server's tokenizer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from synth.teachers.source import Unanswered
from synth.teachers.teacher import Fault, Request

MESSAGE_OVERHEAD_TOKENS = 16
"""Tokens that a chat template may put around a message."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests made and tokens used."""

    requests: int = 0
    tokens: int = 0


def largest_cost(request: Request) -> int:
    """The most tokens that a request can cost: prompt and completion."""
    prompt = sum(len(message.content.encode()) + MESSAGE_OVERHEAD_TOKENS for message in request.messages)
    return prompt + request.max_tokens


class Budget:
    """Limits over what is spent; lives in one event loop."""

    def __init__(self, max_requests: int | None, max_tokens: int | None, spent: Spent) -> None:
        self._max_requests, self._max_tokens = max_requests, max_tokens
        self._requests, self._tokens = spent.requests, spent.tokens
        self._set_aside = 0
        self._changed = asyncio.Condition()

    @property
    def spent(self) -> Spent:
        """What has been spent until now."""
        return Spent(self._requests, self._tokens)

    async def set_aside(self, tokens: int) -> None:
        """Take one request and `tokens` out, waiting for others to be booked where only they stand in the way.

        Raises:
            Unanswered: where the limit is reached.
        """
        async with self._changed:
            while not self._fits(tokens):
                if not self._set_aside:
                    raise Unanswered(Fault.BUDGET, f"max_tokens: {self._tokens} of {self._max_tokens} are spent, this may cost {tokens}")
                await self._changed.wait()
            if self._max_requests is not None and self._requests >= self._max_requests:
                raise Unanswered(Fault.BUDGET, f"max_requests: all {self._max_requests} are made")
            self._requests += 1
            self._set_aside += tokens

    async def book(self, set_aside: int, used: int) -> None:
        """Replace what was set aside for a try by what it used."""
        async with self._changed:
            self._set_aside -= set_aside
            self._tokens += used
            self._changed.notify_all()

    def _fits(self, tokens: int) -> bool:
        return self._max_tokens is None or self._tokens + self._set_aside + tokens <= self._max_tokens
