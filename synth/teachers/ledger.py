"""What a teacher has cost one home, try by try, in a file beside the lake: what a killed process had under way is not forgotten.

A completion in the lake says what the try cost that brought it; what the failed ones cost, and those whose process died before the reply
was stored, only this says. Before a try the most that it can cost is written down, afterwards what it did cost. A try that nobody ever
booked counts at its most, so a limit holds over all processes that ever asked, at whatever moment they ended.
"""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from synth.teachers.source import SourceError
from synth.teachers.teacher import Fault
from warehouse.records import Request

FILE = "spending.sqlite"
"""The file in the lake's folder."""
MESSAGE_OVERHEAD_TOKENS = 16
"""Tokens that a chat template may put around a message."""
_PATIENCE_SECONDS = 60.0
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS accounts (teacher TEXT PRIMARY KEY, requests INTEGER NOT NULL, tokens INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS tries (id INTEGER PRIMARY KEY AUTOINCREMENT, teacher TEXT NOT NULL, tokens INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests made and tokens used."""

    requests: int = 0
    tokens: int = 0


def largest_cost(request: Request) -> int:
    """The most tokens that a request can cost: prompt and completion."""
    prompt = sum(len(message.content.encode()) + MESSAGE_OVERHEAD_TOKENS for message in request.messages)
    return prompt + request.max_tokens


class Ledger:
    """The account of one teacher in the file at `path`, or in memory without one; used from one thread at a time.

    An account that is new begins with what is `known` to have been spent.
    """

    def __init__(self, path: Path | None, teacher: str, known: Spent) -> None:
        self._teacher = teacher
        place = ":memory:" if path is None else str(path)
        self._connection = sqlite3.connect(place, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False)
        self._connection.executescript(_TABLES)
        self._connection.execute("INSERT OR IGNORE INTO accounts VALUES (?, ?, ?)", (teacher, known.requests, known.tokens))

    @property
    def spent(self) -> Spent:
        """What has been spent until now; tries that are not booked count at their most."""
        sql = "SELECT requests, tokens + (SELECT coalesce(sum(tokens), 0) FROM tries WHERE teacher = ?1) FROM accounts WHERE teacher = ?1"
        ((requests, tokens),) = self._connection.execute(sql, (self._teacher,)).fetchall()
        return Spent(int(requests), int(tokens))

    def begin(self, tokens: int, limits: tuple[int | None, int | None]) -> int | str:
        """The number of a try that may cost `tokens`, or why there may be none within `limits` of requests and tokens."""
        max_requests, max_tokens = limits
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            spent = self.spent
            if max_requests is not None and spent.requests >= max_requests:
                return f"max_requests: all {max_requests} are made"
            if max_tokens is not None and spent.tokens + tokens > max_tokens:
                return f"max_tokens: {spent.tokens} of {max_tokens} are spent, this may cost {tokens}"
            connection.execute("UPDATE accounts SET requests = requests + 1 WHERE teacher = ?", (self._teacher,))
            return int(connection.execute("INSERT INTO tries (teacher, tokens) VALUES (?, ?)", (self._teacher, tokens)).lastrowid or 0)

    def book(self, number: int, tokens: int) -> None:
        """Replace the most that a try can cost by what it did cost."""
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM tries WHERE id = ?", (number,))
            connection.execute("UPDATE accounts SET tokens = tokens + ? WHERE teacher = ?", (tokens, self._teacher))

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


class Budget:
    """Limits over what a ledger says is spent; lives in one event loop."""

    def __init__(self, max_requests: int | None, max_tokens: int | None, ledger: Ledger) -> None:
        self._limits, self._ledger = (max_requests, max_tokens), ledger
        self._open: set[int] = set()
        self._changed = asyncio.Condition()

    @property
    def spent(self) -> Spent:
        """What has been spent until now."""
        return self._ledger.spent

    async def set_aside(self, tokens: int) -> int:
        """Take one request and `tokens` out, waiting for others to be booked where only they stand in the way; the number of the try.

        Raises:
            SourceError: where the limit is reached.
        """
        async with self._changed:
            while isinstance(begun := self._ledger.begin(tokens, self._limits), str):
                if not self._open or begun.startswith("max_requests"):
                    raise SourceError(Fault.BUDGET, begun)
                await self._changed.wait()
            self._open.add(begun)
            return begun

    async def book(self, number: int, used: int) -> None:
        """Replace what was set aside for a try by what it used."""
        async with self._changed:
            self._ledger.book(number, used)
            self._open.discard(number)
            self._changed.notify_all()
