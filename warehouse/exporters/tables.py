"""What leaves the lake: one table as a file, or all of it as a single DuckDB file."""

from __future__ import annotations

from pathlib import Path

import duckdb

from warehouse.connections import connect_unlocked, cursor_in_lake
from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.exporters.dataset import check_free
from warehouse.lake import Lake
from warehouse.queries import check_view
from warehouse.schema import TABLES
from warehouse.storage import quoted
from warehouse.views import MACROS, VIEWS

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
    check_free(path)
    with drafted(path) as part, connect_unlocked(lake.place) as connection, cursor_in_lake(connection) as cursor:
        check_view(cursor, name)
        query = f"SELECT {_as_texts(cursor, name)} FROM {name}" if path.suffix == ".csv" else f"FROM {name}"
        rows = cursor.execute(f"COPY ({query}) TO {quoted(str(part))} (FORMAT {_FORMATS[path.suffix]})").fetchall()
    return int(rows[0][0])


def _as_texts(cursor: duckdb.DuckDBPyConnection, name: str) -> str:
    """The columns of a table, lists and structures as JSON: CSV has none, and DuckDB's `[a, b]` does not say where a text ends."""
    cursor.execute(f"FROM {name} LIMIT 0")
    nested = [column for column, kind, *_ in cursor.description or [] if kind.id in ("list", "array", "struct", "map")]
    replaced = ", ".join(f'to_json("{column}")::VARCHAR AS "{column}"' for column in nested)
    return f"* REPLACE ({replaced})" if nested else "*"


def export_database(lake: Lake, path: Path) -> None:
    """Writes all tables, views and macros as they are now to one DuckDB file; raises `RequestError` where `path` exists."""
    check_free(path)
    with drafted(path) as part, connect_unlocked(lake.place) as connection, cursor_in_lake(connection) as cursor:
        cursor.execute(f"ATTACH {quoted(str(part))} AS exported")
        cursor.begin()
        for table in TABLES:
            cursor.execute(f"CREATE TABLE exported.{table.name} AS FROM {table.name} ORDER BY recorded, rowid")
        cursor.commit()
        cursor.execute("USE exported")
        for view in VIEWS.values():
            cursor.execute(f"CREATE VIEW {view.name} AS {view.sql}")
        for macro in MACROS.values():
            cursor.execute(f"CREATE MACRO {macro.signature} AS TABLE {macro.sql}")
        cursor.execute("USE memory")
        cursor.execute("DETACH exported")
