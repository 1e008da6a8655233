"""Tables of figures as Markdown, and how a rate and a difference stand in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eval.statistics import wilson
from flows.results import probability, signed


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table with a head."""
    return "\n".join([_line(heads), f"|{' --- |' * len(heads)}", *map(_line, rows)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def rate(successes: int, valid: int) -> str:
    """A share in % with its interval of 95 % (Wilson)."""
    low, high = wilson(successes, valid)
    return f"{100 * successes / valid:.1f} ({100 * low:.1f}–{100 * high:.1f})"


def points(difference: float, p_value: float) -> str:
    """A difference of two shares in points, with the p-value of its test."""
    return f"{signed(100 * difference)} ({probability(p_value)})"
