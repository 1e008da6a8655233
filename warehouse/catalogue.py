"""Where a lake lies in a home, and how a DuckDB connection comes to see it.

The catalogue is SQLite in WAL mode with a busy timeout: without WAL a reader fails while another process writes. The data
path is given at every attach and wins over the stored one, so a home may be moved or copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from warehouse.extensions import connect

NAME = "lake"
"""The name under which the lake is attached."""
BUSY_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one lake."""

    home: Path

    @property
    def folder(self) -> Path:
        """All that the lake is."""
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
    def lock(self) -> Path:
        """The file that writers lock while they commit."""
        return self.folder / "writer.lock"


def attach_statement(place: Place, read_only: bool, at: int | None = None) -> str:
    """The ATTACH statement for the lake at `place`: as it is now, or as it was at snapshot `at`."""
    options = [
        f"DATA_PATH {quoted(f'{place.data}/')}",
        "OVERRIDE_DATA_PATH true",
        "META_JOURNAL_MODE 'WAL'",
        f"META_BUSY_TIMEOUT {BUSY_TIMEOUT_MS}",
    ]
    options += ["READ_ONLY"] if read_only else []
    options += [] if at is None else [f"SNAPSHOT_VERSION {int(at)}"]
    return f"ATTACH {quoted(f'ducklake:sqlite:{place.catalogue}')} AS {NAME} ({', '.join(options)})"


def connect_to_write(place: Place) -> duckdb.DuckDBPyConnection:
    """A connection that may write; makes the catalogue where there is none (the caller holds the writers' lock)."""
    return _attached(attach_statement(place, read_only=False))


def connect_to_read(place: Place, at: int | None = None) -> duckdb.DuckDBPyConnection:
    """A connection for SQL from anybody: it cannot write to the lake, and of other files it sees none but the lake's own data."""
    connection = _attached(attach_statement(place, read_only=True, at=at))
    connection.execute(f"SET allowed_directories = [{quoted(f'{place.data}/')}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def cursor_in_lake(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A cursor of its own for one piece of work, in which the lake's tables need no prefix."""
    cursor = connection.cursor()
    cursor.execute(f"USE {NAME}")
    return cursor


def quoted(text: str) -> str:
    """`text` as a string literal of SQL, for the places where SQL takes no parameter."""
    return "'" + text.replace("'", "''") + "'"


def _attached(statement: str) -> duckdb.DuckDBPyConnection:
    connection = connect()
    try:
        connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection
