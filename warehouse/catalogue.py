"""Where a lake lies, and how a DuckDB connection comes to see it.

A SQLite catalogue is in WAL mode with a busy timeout: without WAL a reader fails while another process writes. The data path is given
at every attach and wins over the stored one, so a home may be moved or copied. Every row goes to a file, however few they are: DuckLake
would write a handful into the catalogue as SQL text, and fails there on text with a NUL in a list, and on JSON in PostgreSQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from warehouse.extensions import connect
from warehouse.storage import LOCAL, Storage, chosen, quoted

NAME = "lake"
"""The name under which the lake is attached."""
BUSY_TIMEOUT_MS = 10_000
_LOCKS = "lake_locks"
"""The name under which a PostgreSQL catalogue is attached a second time, for its locks."""
_LOCK_NUMBER = 0x666C7977
"""The advisory lock of writers, one number for everybody."""


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one lake, and where those lie that are not in its home."""

    home: Path
    storage: Storage = LOCAL

    @classmethod
    def of(cls, home: Path) -> Place:
        """The place of the lake of `home`."""
        place = cls(Path(home))
        return cls(place.home, chosen(place.folder))

    @property
    def folder(self) -> Path:
        """All that the lake is, where it is local."""
        return self.home.resolve() / "lake"

    @property
    def catalogue(self) -> Path:
        """The SQLite file that knows tables, snapshots and data files."""
        return self.folder / "catalog.sqlite"

    @property
    def data(self) -> Path:
        """The folder of the Parquet files."""
        return self.folder / "data"

    @property
    def data_path(self) -> str:
        """Where the Parquet files lie, ending in a slash."""
        return f"{self.data}/" if self.storage.data is None else f"{self.storage.data.rstrip('/')}/"

    @property
    def lock(self) -> Path:
        """The file that writers lock while they commit."""
        return self.folder / "writer.lock"


def attach_statement(place: Place, read_only: bool, at: int | None = None) -> str:
    """The ATTACH statement for the lake at `place`: as it is now, or as it was at snapshot `at`."""
    remote = place.storage.catalogue
    options = [f"DATA_PATH {quoted(place.data_path)}", "OVERRIDE_DATA_PATH true", "DATA_INLINING_ROW_LIMIT 0"]
    options += ["META_JOURNAL_MODE 'WAL'", f"META_BUSY_TIMEOUT {BUSY_TIMEOUT_MS}"] if remote is None else []
    options += ["READ_ONLY"] if read_only else []
    options += [] if at is None else [f"SNAPSHOT_VERSION {int(at)}"]
    address = f"ducklake:{remote or f'sqlite:{place.catalogue}'}"
    return f"ATTACH {quoted(address)} AS {NAME} ({', '.join(options)})"


def connect_to_files(place: Place) -> duckdb.DuckDBPyConnection:
    """A connection that can reach the lake's files and does not see the lake yet."""
    connection = connect(place.storage.extensions)
    try:
        secret = place.storage.secret()
        if secret is not None:
            connection.execute(secret)
        if place.storage.catalogue is not None:
            address = place.storage.catalogue.removeprefix("postgres:")
            connection.execute(f"ATTACH {quoted(address)} AS {_LOCKS} (TYPE postgres, READ_ONLY)")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(place: Place, at: int | None = None) -> duckdb.DuckDBPyConnection:
    """A connection for SQL from anybody: it cannot write to the lake, and of other files it sees none but the lake's own data.

    What DuckDB's settings do not close, functions that read other databases, `queries.py` refuses.
    """
    connection = connect_unlocked(place, at)
    connection.execute(f"SET allowed_directories = [{quoted(place.data_path)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def connect_unlocked(place: Place, at: int | None = None) -> duckdb.DuckDBPyConnection:
    """A connection that reads the lake and may use files elsewhere: for our own statements alone."""
    connection = connect_to_files(place)
    try:
        connection.execute(attach_statement(place, read_only=True, at=at))
    except BaseException:
        connection.close()
        raise
    return connection


def cursor_in_lake(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A cursor of its own for one piece of work, in which the lake's tables need no prefix."""
    cursor = connection.cursor()
    cursor.execute(f"USE {NAME}")
    return cursor


def try_shared_lock(cursor: duckdb.DuckDBPyConnection) -> bool:
    """Takes the lock that writers of other machines share, in the open transaction of `cursor`, whose end frees it."""
    asked = f"SELECT pg_try_advisory_xact_lock({_LOCK_NUMBER})::text AS taken"
    return cursor.execute(f"FROM postgres_query('{_LOCKS}', {quoted(asked)})").fetchall() == [("true",)]
