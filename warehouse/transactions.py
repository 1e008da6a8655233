"""Commits: a lock that admits one writer at a time, a transaction, and bounded retries.

DuckLake lets two commits append to one table concurrently, so two processes that insert missing rows could insert duplicates. The lock
prevents that among our writers; retries cover other clients and checkpoints. A shared catalogue has an additional lock.
"""

from __future__ import annotations

import fcntl
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import duckdb

from warehouse.checksums import files_since, keep_digests_of, latest_snapshot
from warehouse.connections import cursor_in_lake, try_shared_lock
from warehouse.storage import Place

T = TypeVar("T")

ATTEMPTS = 8
FIRST_PAUSE_S = 0.05
"""Mean pause after the first failed try, in seconds; doubles with each try."""
LOCK_PATIENCE_S = 120.0
"""Maximum seconds to wait for other writers; a commit takes well under a second."""
_LOCK_POLL_S = 0.005
_TRANSIENT = ("database is locked", "database table is locked", "conflict", "busy")


@contextmanager
def writers_lock(path: Path, patience_s: float = LOCK_PATIENCE_S) -> Iterator[None]:
    """Hold the lock at `path` against other threads and processes; the system releases it if this process dies.

    The next waiter holds a second lock until it gets the first, so a writer that just released it cannot starve others. Raises TimeoutError
    after `patience_s` seconds of waiting for either lock.
    """
    with path.open("a") as held, path.with_suffix(".next").open("a") as line:
        _wait(partial(_try_lock, line.fileno()), patience_s, str(path))
        _wait(partial(_try_lock, held.fileno()), patience_s, str(path))
        fcntl.flock(line.fileno(), fcntl.LOCK_UN)
        yield


@contextmanager
def all_writer_locks(connection: duckdb.DuckDBPyConnection, place: Place, patience_s: float = LOCK_PATIENCE_S) -> Iterator[None]:
    """Hold the lock of this machine's writers and, for a shared catalogue, the catalogue's lock."""
    with writers_lock(place.lock, patience_s), ExitStack() as held:
        if place.storage.catalogue is not None:
            held.enter_context(_shared_lock(connection, patience_s))
        yield


@contextmanager
def _shared_lock(connection: duckdb.DuckDBPyConnection, patience_s: float) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.begin()
        try:
            _wait(partial(try_shared_lock, cursor), patience_s, "the lake's catalogue")
            yield
        finally:
            cursor.rollback()


def commit(connection: duckdb.DuckDBPyConnection, place: Place, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
    """Run `work` with a cursor as one transaction, repeated after conflicts; record checksums of new files in the home."""
    written: list[Path] = []
    with all_writer_locks(connection, place):
        result, before = _in_tries(connection, work)
        if place.storage.data is None:
            with suppress(duckdb.Error), cursor_in_lake(connection) as cursor:  # the commit succeeded in any case
                written = files_since(cursor, before, place)
    with suppress(OSError):  # full disk: the next writer records them
        keep_digests_of(written, place)
    return result


def _in_tries(connection: duckdb.DuckDBPyConnection, work: Callable[[duckdb.DuckDBPyConnection], T]) -> tuple[T, int]:
    for attempt in range(ATTEMPTS):
        try:
            return _transaction(connection, work)
        except duckdb.Error as error:
            if attempt == ATTEMPTS - 1 or not _is_transient(error):
                raise
            time.sleep(FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1.5))
    raise AssertionError("unreachable: the last attempt returns or raises")


def _transaction(connection: duckdb.DuckDBPyConnection, work: Callable[[duckdb.DuckDBPyConnection], T]) -> tuple[T, int]:
    cursor = cursor_in_lake(connection)
    try:
        cursor.begin()
        before = latest_snapshot(cursor)
        result = work(cursor)
        cursor.commit()
        return result, before
    except BaseException:
        with suppress(duckdb.Error):
            cursor.rollback()
        raise
    finally:
        cursor.close()


def _wait(take: Callable[[], bool], patience_s: float, what: str) -> None:
    deadline = time.monotonic() + patience_s
    while not take():
        if time.monotonic() > deadline:
            raise TimeoutError(f"another writer has held {what} for {patience_s:.0f} seconds")
        time.sleep(_LOCK_POLL_S)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_transient(error: duckdb.Error) -> bool:
    return any(sign in str(error).lower() for sign in _TRANSIENT)
