"""How a command ends that did not do its work: the sentence for whoever typed it, and the exit status."""

from __future__ import annotations

import logging
import sys
import traceback
from types import TracebackType

from rl.terminal import in_line, say

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells know it."""
LONGEST = 1600
"""Letters of a sentence; foreign text in it may be longer."""
_CLOSED = ("read-only", "readonly", "permission denied", "not a directory", "unable to open database file", "cannot open file")
"""How DuckDB and SQLite say that they may not write."""
_DAMAGED = ("parquet", "database disk image is malformed", "file is not a database", "catalog.sqlite", "don't know what type", "tprotocol")
"""What they speak of where a file of the lake is not what it was."""


def exit_status(error: Exception) -> int:
    """Print an error that the user can do something about as one sentence and return its exit status; every other is raised again."""
    found = _told(error)
    if found is None:
        raise error
    _say(found[0])
    return found[1]


def show_defect(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print where an error came from that is nobody's but ours (`sys.excepthook`); what it quotes is not obeyed by the terminal."""
    say("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"), sys.stderr)


def say_interrupted() -> None:
    """Say what Ctrl-C means for the command; what libraries would log from here on, as they are let go of, is not shown."""
    logging.disable()
    _say("interrupted; the same command goes on")


def _say(sentence: str) -> None:
    say(in_line(f"flywheel: {sentence}"), sys.stderr)


def _told(error: Exception) -> tuple[str, int] | None:
    import duckdb  # not before there is an error: --help answers at once

    from warehouse.drafts import is_full
    from warehouse.errors import RequestError, WorkFailed

    if isinstance(error, RequestError | WorkFailed):
        return _short(str(error)), 2 if isinstance(error, RequestError) else 1
    if is_full(error):
        return f"the disk is full ({_first_line(error)}); what was stored is whole: make room, and start the same command again.", 1
    if isinstance(error, OSError) and error.filename is not None:
        place = str(error.filename).removesuffix(".part")
        return f"{place} cannot be read or written ({error.strerror}): name another place, or see to this one.", 2
    if isinstance(error, duckdb.Error) and any(sign in str(error).lower() for sign in _CLOSED):
        return f"the lake, or what was to be written, is not open to writing ({_first_line(error)}): name another place.", 2
    if isinstance(error, duckdb.Error) and any(sign in str(error).lower() for sign in _DAMAGED):
        why = _first_line(error)
        return f"a file of the lake is damaged ({why}): `flywheel lake check` names it; put it back, or take another --home.", 2
    return None


def _short(sentence: str) -> str:
    """A sentence that can be read, whatever it quotes: what it is about stands at its beginning, what to do at its end."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST - 400]} … {sentence[-400:]}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removesuffix(".")[:300]
