"""Completions in the lake: what was paid for once is found again, by the next stage and after a crash.

A completion is stored as soon as it is there. Those that arrive while a commit is under way go into the next one together, so that
many requests side by side make few commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from synth.teachers.budget import Spent
from warehouse.lake import Lake
from warehouse.records import Completion


class CompletionCache:
    """The completions of one lake, kept from one event loop and found from any thread."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._waiting: list[Completion] = []
        self._committing = asyncio.Lock()

    def find(self, ids: Sequence[str]) -> dict[str, Completion]:
        """Those of `ids` that are stored."""
        found = self._lake.read(Completion, "id IN (SELECT unnest(?))", [list(ids)]) if ids else []
        return {completion.id: completion for completion in found}

    async def keep(self, completion: Completion) -> None:
        """Store a completion; returns when it is safe."""
        self._waiting.append(completion)
        async with self._committing:
            batch, self._waiting = self._waiting, []
            if batch:
                await asyncio.to_thread(self._lake.add, batch)

    def spent(self, teacher: str) -> Spent:
        """What the stored completions of a teacher have cost."""
        sql = "SELECT coalesce(sum(attempts), 0), coalesce(sum(prompt_tokens + completion_tokens), 0) FROM completions WHERE teacher = ?"
        requests, tokens = (column[0].as_py() for column in self._lake.query(sql, [teacher]).columns)
        return Spent(int(requests), int(tokens))
