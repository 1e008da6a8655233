"""Errors that the command line tells in one sentence, by what comes of them: its exit status."""

from __future__ import annotations


class RequestError(Exception):
    """A request that cannot be met as it stands: one sentence that says what, where, and what to do. Exit status 2."""


class WorkFailed(Exception):
    """Work that was rightly asked for and cannot go on: one sentence that says what failed. Exit status 1."""
