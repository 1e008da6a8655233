"""Errors that the command line tells in one sentence, by what comes of them: its exit status. And the first line of any error."""

from __future__ import annotations

LONGEST = 500
"""Characters of an error with its type."""


class RequestError(Exception):
    """A request that cannot be met as it stands: one sentence that says what, where, and what to do. Exit status 2."""


class WorkFailed(Exception):
    """Work that was rightly asked for and cannot go on: one sentence that says what failed. Exit status 1."""


def first_line(error: BaseException | str) -> str:
    """The first line of a message; of a group of errors, that of its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error).strip().partition("\n")[0].rstrip()


def with_type(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {first_line(error)}"[:LONGEST] if first_line(error) else type(error).__name__
