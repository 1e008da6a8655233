"""A teacher that keeps account of what it is asked and of what came of it, piece of work by piece of work.

The account is of what was needed, not of what was paid: a completion that the lake had already counts as it did the first time, so that
work that was killed and made again has the account of work that was not. What was paid stands in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock

from synth.teachers.teacher import Reply, Teacher
from warehouse.records import Completion, Request


def add_counts(counts: dict[str, float], more: Mapping[str, float]) -> None:
    """Add `more` to `counts`, name by name."""
    for name, number in more.items():
        counts[name] = counts.get(name, 0) + number


class MeteredTeacher:
    """Another teacher, whose requests are counted; safe to call from several threads, as that one is."""

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher
        self._counts: dict[str, float] = {}
        self._lock = Lock()

    @property
    def name(self) -> str:
        """The other one's."""
        return self._teacher.name

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """What the other one replies."""
        replies = self._teacher.complete(requests)
        with self._lock:
            for reply in replies:
                add_counts(self._counts, _account(reply))
        return replies

    def drain(self) -> dict[str, float]:
        """Requests (`asked`), those that were `completed` or came to which fault, tokens and seconds; from now on it begins at zero."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts


def _account(reply: Reply) -> dict[str, float]:
    if isinstance(reply, Completion):
        tokens = reply.prompt_tokens + reply.completion_tokens
        return {"asked": 1, "completed": 1, "tokens": tokens, "seconds": reply.seconds}
    return {"asked": 1, str(reply.kind): 1, "tokens": reply.item.get("tokens", 0) if isinstance(reply.item, dict) else 0}
