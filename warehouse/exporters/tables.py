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
        chosen = _SELECTS.get(path.suffix, _whole)(cursor, name)
        rows = cursor.execute(f"COPY ({chosen}) TO {quoted(str(part))} (FORMAT {_FORMATS[path.suffix]})").fetchall()
    return int(rows[0][0])


def _whole(cursor: duckdb.DuckDBPyConnection, name: str) -> str:
    return f"FROM {name}"


def _lists_as_json(cursor: duckdb.DuckDBPyConnection, name: str) -> str:
    """The SELECT of a table's rows with its lists as JSON, which others than DuckDB can read in a cell too."""
    kinds = {row[0]: row[1] for row in cursor.execute(f"DESCRIBE FROM {name}").fetchall()}
    lists = [(each, _finite_list(each) if _holds_numbers(kind) else f'"{each}"') for each, kind in kinds.items() if kind.endswith("[]")]
    replaced = ", ".join(f'to_json({value})::VARCHAR AS "{each}"' for each, value in lists)
    return f"SELECT * REPLACE ({replaced}) FROM {name}" if replaced else f"FROM {name}"


def _finite(cursor: duckdb.DuckDBPyConnection, name: str) -> str:
    """The SELECT of a table's rows with NULL where a number is NaN or infinite, of which JSON has no form."""
    kinds = {row[0]: row[1] for row in cursor.execute(f"DESCRIBE FROM {name}").fetchall()}
    numbers = [f'CASE WHEN isfinite("{each}") THEN "{each}" END AS "{each}"' for each, kind in kinds.items() if kind in _NUMBERS]
    lists = [f'{_finite_list(each)} AS "{each}"' for each, kind in kinds.items() if _holds_numbers(kind)]
    replaced = ", ".join([*numbers, *lists])
    return f"SELECT * REPLACE ({replaced}) FROM {name}" if replaced else f"FROM {name}"


def _holds_numbers(kind: str) -> bool:
    return kind.endswith("[]") and kind.removesuffix("[]") in _NUMBERS


def _finite_list(column: str) -> str:
    return f'list_transform("{column}", lambda n: CASE WHEN isfinite(n) THEN n END)'


_SELECTS: dict[str, Callable[[duckdb.DuckDBPyConnection, str], str]] = {".jsonl": _finite, ".json": _finite, ".csv": _lists_as_json}


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
