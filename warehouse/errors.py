"""Errors that the command line reports in one sentence with an exit status."""

from __future__ import annotations

LONGEST = 500
"""Maximum characters of an error with its type."""


class RequestError(Exception):
    """Invalid request: one sentence that says what is wrong, where, and what to do. Exit status 2."""


class WorkFailed(Exception):
    """Valid request whose execution failed: one sentence that says what failed. Exit status 1."""


def first_line(error: BaseException | str) -> str:
    """First line of a message; for an exception group, of its first exception."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error).strip().partition("\n")[0].rstrip()


def with_type(error: BaseException) -> str:
    """Type of an error and the first line of its message."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {first_line(error)}"[:LONGEST] if first_line(error) else type(error).__name__
