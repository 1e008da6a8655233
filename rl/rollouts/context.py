"""Shorten a full context, by a summary of the policy's, or by removing: older observations become a note, then the oldest turns go.
The actions that stay are as sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

NOTE = "[removed: the context was full]"
"""What stands for an observation that was removed."""
SUMMARY = "context summary"
"""Tool of the loop's own: what a policy writes in reply to `REQUEST`. No tool of an environment can have a name with a space."""
REQUEST = "Your context is almost full. Summarize what you did and found, and what is left to do: only that and your last steps stay."


def summarized(question: str, summary: str) -> str:
    """The question of a context that begins with a summary."""
    return f"{question}\n\nYour summary of what you did before:\n{summary}"


@dataclass(frozen=True, slots=True)
class Past:
    """Ids of a turn: its action, its observation, and the note that may replace that."""

    action: tuple[int, ...]
    observation: tuple[int, ...]
    note: tuple[int, ...]


def shortened(prompt_ids: Sequence[int], past: Sequence[Past], keep: int, most: int) -> tuple[int, ...] | None:
    """Ids of a new context of at most `most` tokens, or None if not even the last turn fits.

    The last `keep` observations stay. The oldest turns are removed until half of `most` is free, so that the next turns append again, or
    only the turns with kept observations are left; of these the oldest go, too, if they do not fit.
    """
    fitting: tuple[int, ...] | None = None
    kept_from = max(0, len(past) - keep)
    for first in range(len(past)):
        turns = ((turn.action, turn.observation if place >= kept_from else turn.note) for place, turn in enumerate(past) if place >= first)
        ids = (*prompt_ids, *chain.from_iterable(chain.from_iterable(turns)))
        fitting = ids if len(ids) <= most else None
        if fitting is not None and (len(ids) <= most // 2 or first >= kept_from):
            break
    return fitting
