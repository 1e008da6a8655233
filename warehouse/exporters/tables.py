"""What leaves the lake: one table as a file, or all of it as a single DuckDB file."""

from __future__ import annotations

from collections.abc import Callable
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
_NUMBERS = ("DOUBLE", "FLOAT")


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
        chosen = _rows_of(cursor, name, path.suffix)
        rows = cursor.execute(f"COPY ({chosen}) TO {quoted(str(part))} (FORMAT {_FORMATS[path.suffix]})").fetchall()
    return int(rows[0][0])


def _rows_of(cursor: duckdb.DuckDBPyConnection, name: str, suffix: str) -> str:
    """The SELECT of a table's rows as a file of that suffix can hold them."""
    write = _WRITERS.get(suffix)
    kinds = {row[0]: row[1] for row in cursor.execute(f"DESCRIBE FROM {name}").fetchall()} if write else {}
    replaced = ", ".join(f'{value} AS "{column}"' for column, kind in kinds.items() if write and (value := write(f'"{column}"', kind)))
    return f"SELECT * REPLACE ({replaced}) FROM {name}" if replaced else f"FROM {name}"


def _in_json(column: str, kind: str) -> str | None:
    """NULL where a number is NaN or infinite, of which JSON has no form; None for columns without any."""
    if kind.removesuffix("[]") not in _NUMBERS:
        return None
    finite = "CASE WHEN isfinite({0}) THEN {0} END"
    return f"list_transform({column}, lambda n: {finite.format('n')})" if kind.endswith("[]") else finite.format(column)


def _in_csv(column: str, kind: str) -> str | None:
    """Lists and structures as JSON: CSV has none, and DuckDB's `[a, b]` does not say where a text ends; None for other columns."""
    nested = kind.endswith("[]") or kind.startswith(("STRUCT(", "MAP("))
    return f"to_json({_in_json(column, kind) or column})::VARCHAR" if nested else None


_WRITERS: dict[str, Callable[[str, str], str | None]] = {".jsonl": _in_json, ".json": _in_json, ".csv": _in_csv}


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
