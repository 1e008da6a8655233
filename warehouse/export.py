"""What leaves the lake: one table as a file, or all of it as a single DuckDB file."""

from __future__ import annotations

from pathlib import Path

import duckdb

from warehouse.catalogue import attach_statement, cursor_in_lake, quoted
from warehouse.errors import RequestError
from warehouse.extensions import connect
from warehouse.lake import Lake
from warehouse.schema import TABLES
from warehouse.views import VIEWS

_FORMATS = {".parquet": "PARQUET, COMPRESSION zstd", ".jsonl": "JSON", ".json": "JSON, ARRAY true", ".csv": "CSV, HEADER"}


def export_table(lake: Lake, name: str, path: Path) -> int:
    """Writes one table or view to `path` in the format its suffix names, and returns the number of rows.

    Raises `RequestError` for an unknown name or suffix and for a file that exists.
    """
    known = [table.name for table in TABLES] + list(VIEWS)
    if name not in known:
        raise RequestError(f"The lake has no table {name!r}: choose one of {', '.join(known)}.")
    if path.suffix not in _FORMATS:
        raise RequestError(f"{path} names no known format: end it in one of {', '.join(_FORMATS)}.")
    part = _part_of(path)
    with _unlocked(lake) as connection, cursor_in_lake(connection) as cursor:
        rows = cursor.execute(f"COPY (FROM {name}) TO {quoted(str(part))} (FORMAT {_FORMATS[path.suffix]})").fetchall()
    part.rename(path)
    return int(rows[0][0])


def export_database(lake: Lake, path: Path) -> None:
    """Writes all tables and views as they are now to one DuckDB file; raises `RequestError` where `path` exists."""
    part = _part_of(path)
    with _unlocked(lake) as connection, cursor_in_lake(connection) as cursor:
        cursor.execute(f"ATTACH {quoted(str(part))} AS exported")
        cursor.begin()
        for table in TABLES:
            cursor.execute(f"CREATE TABLE exported.{table.name} AS FROM {table.name} ORDER BY recorded, rowid")
        cursor.commit()
        cursor.execute("USE exported")
        for name, definition in VIEWS.items():
            cursor.execute(f"CREATE VIEW {name} AS {definition}")
        cursor.execute("USE memory")
        cursor.execute("DETACH exported")
    part.rename(path)


def _part_of(path: Path) -> Path:
    """The file to write first, so that a broken export never stands under the final name."""
    if path.exists():
        raise RequestError(f"{path} exists already: choose another path or remove it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    return part


def _unlocked(lake: Lake) -> duckdb.DuckDBPyConnection:
    """A connection that reads the lake and may write files elsewhere: only our own statements run on it."""
    connection = connect()
    connection.execute(attach_statement(lake.place, read_only=True))
    return connection
