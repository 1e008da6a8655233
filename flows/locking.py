"""One writer of the wheel per home: a lock that the operating system releases when its holder dies, however it dies.

Readers need no lock. Upkeep of the lake needs none either: it is one writer of the lake among others.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from warehouse.errors import RequestError

log = logging.getLogger("flywheel")

LOOK_SECONDS = 2.0
"""Pause between two tries of whoever waits for the lock."""


class HomeBusy(RequestError):
    """Another process is at work in the home."""


@contextmanager
def exclusive(path: Path, patience_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock file at `path`, for which others are waited for so long. Raises HomeBusy, naming the holder, where one keeps it."""
    with path.open("a+") as file:
        deadline, told = time.monotonic() + patience_seconds, False
        while (holder := _try(file)) is not None:
            if time.monotonic() >= deadline:
                raise HomeBusy(f"{path.parent} is in use by process {holder}; wait for it, or choose another --home.")
            if not told:
                log.info("waiting for process %s, which is at work in %s", holder, path.parent)
                told = True
            time.sleep(LOOK_SECONDS)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _try(file: IO[str]) -> str | None:
    """Take the lock; the process that holds it where that cannot be."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        return file.read().strip() or "unknown"
    return None
