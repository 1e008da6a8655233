"""One writer of the wheel per home: a lock that the operating system releases when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warehouse.errors import RequestError


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`. Raises RequestError, naming the holder, where another process has it."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise RequestError(f"{path.parent} is in use by process {holder}; wait for it, or choose another --home.") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
