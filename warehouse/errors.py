"""Errors that the command line reports in one sentence, each with its exit status; and the first line of any error."""

from __future__ import annotations

LONGEST = 500
"""Characters of an error with its type."""


class RequestError(Exception):
    """The request is wrong: one sentence that says what, where, and what to do. Exit status 2."""


class WorkFailed(Exception):
    """The request was right and the work failed: one sentence that says what. Exit status 1."""


def first_line(error: BaseException | str) -> str:
    """The first line of a message; of an exception group, of its first exception."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error).strip().partition("\n")[0].rstrip()


def with_type(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {first_line(error)}"[:LONGEST] if first_line(error) else type(error).__name__
