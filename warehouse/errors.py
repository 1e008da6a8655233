"""Errors that the person who asked can mend."""

from __future__ import annotations


class RequestError(Exception):
    """A request that cannot be met as it stands: one sentence that says what, where, and what to do. Exit status 2."""
