"""Run user SQL: one SELECT, with errors that say what to change.

A reading connection accesses only the lake's data. Some functions of DuckDB's extensions bypass the connection's restrictions
(`sqlite_scan`) or run SQL from a string, so table functions are limited to an allowlist. The same applies to the views and macros behind a
query, which an untrusted home may define arbitrarily.
"""

from __future__ import annotations

import json
import re
import resource
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from warehouse.connections import CATALOG, LOCKS, cursor_in_lake, most_memory
from warehouse.errors import RequestError
from warehouse.schema import TABLES
from warehouse.storage import quoted
from warehouse.views import MACROS

TABLE_FUNCTIONS = frozenset(MACROS) | {
    "range", "generate_series", "unnest", "repeat", "repeat_row", "summary", "json_each", "json_tree",
    "duckdb_tables", "duckdb_columns", "duckdb_views", "duckdb_functions", "duckdb_types", "pragma_table_info",
    "ducklake_snapshots", "ducklake_current_snapshot", "ducklake_last_committed_snapshot", "ducklake_table_info",
    "ducklake_table_changes", "ducklake_table_insertions", "ducklake_table_deletions", "ducklake_list_files",
}  # fmt: skip
"""Table functions that a query may call."""
OF_CONNECTION = frozenset(["pragma_database_list", "duckdb_databases", "pg_database", "pg_settings", "duckdb_logs"])
"""DuckDB's own views of attachments and settings, which include catalogue addresses with passwords."""
_BATCH_ROWS = 100_000
_TOO_MUCH = "The query needs more memory than half of this machine's; ask for fewer rows or columns."
_OF_FILES = re.compile(r"[/\\.:*?]")
"""Characters of a file name, which DuckDB would read if no such table exists."""
_CATALOGUE = f"__ducklake_metadata_{CATALOG}"
_harmless: set[str] = set()
"""Definitions of views and macros that this process has checked."""


def run_query(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] | Mapping[str, Any], timeout_seconds: float | None = None
) -> pa.Table:
    """Rows of `sql` on a reading connection.

    Raises RequestError if it is not one SELECT, fails, needs too much memory, or takes longer than `timeout_seconds`.
    """
    with cursor_in_lake(connection) as cursor, _interrupted_after(cursor, timeout_seconds):
        try:
            statements = cursor.extract_statements(sql)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise RequestError(f"A query must be a single SELECT statement, and this is not: {sql.strip()[:200]}")
            _check_functions(cursor, sql)
            given = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
            return _bounded(cursor.execute(sql, given).to_arrow_reader(_BATCH_ROWS))
        except duckdb.InterruptException as error:
            raise RequestError(f"The query took longer than {timeout_seconds:g} seconds; raise --timeout.") from error
        except (duckdb.OutOfMemoryException, MemoryError) as error:
            raise RequestError(_TOO_MUCH) from error
        except OSError as error:  # Arrow's, which receives the rows
            if "out of memory" not in str(error).lower():
                raise
            raise RequestError(_TOO_MUCH) from error
        except duckdb.Error as error:
            raise RequestError(f"The query failed: {first_paragraph(error)}") from error


def _bounded(rows: pa.RecordBatchReader) -> pa.Table:
    """All rows. Raises MemoryError beyond a query's memory, since DuckDB does not count rows it has returned."""
    batches, left = [], most_memory()
    for batch in rows:
        batches.append(batch)
        left -= batch.nbytes
        if left < 0:
            raise MemoryError
    return pa.Table.from_batches(batches, rows.schema)


@contextmanager
def bounded_process() -> Iterator[None]:
    """Limit this process to a query's memory within the block, since DuckDB does not count long strings built by a query."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    lower = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([most_memory(), *lower]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextmanager
def _interrupted_after(cursor: duckdb.DuckDBPyConnection, seconds: float | None) -> Iterator[None]:
    timer = threading.Timer(seconds, cursor.interrupt) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def first_paragraph(error: duckdb.Error) -> str:
    """DuckDB's message on one line, without hints."""
    return " ".join(str(error).split("\n\n")[0].split())


def check_catalogue(cursor: duckdb.DuckDBPyConnection, home: str) -> None:
    """Check a lake before use: tables are tables, macros are this program's, files are within its data. Raises RequestError."""
    tables = ", ".join(map(quoted, [*(table.name for table in TABLES), "versions"]))
    elsewhere = "NOT path_is_relative::BOOLEAN OR contains(path, '..')"
    found = cursor.execute(
        f"""
        SELECT 'a view in the place of the table ' || view_name FROM {_CATALOGUE}.ducklake_view WHERE lower(view_name) IN ({tables})
        UNION ALL SELECT 'a macro ' || macro_name FROM {_CATALOGUE}.ducklake_macro
            WHERE macro_name NOT IN ({", ".join(map(quoted, MACROS))})
        UNION ALL SELECT 'a data file at ' || path FROM {_CATALOGUE}.ducklake_data_file WHERE {elsewhere}
        UNION ALL SELECT 'a data file at ' || path FROM {_CATALOGUE}.ducklake_delete_file WHERE {elsewhere}
        UNION ALL SELECT 'a table at ' || path FROM {_CATALOGUE}.ducklake_table WHERE {elsewhere}
        UNION ALL SELECT 'a schema at ' || path FROM {_CATALOGUE}.ducklake_schema WHERE {elsewhere}
        LIMIT 1
        """
    ).fetchall()
    if found:
        raise RequestError(f"The lake in {home} has {found[0][0]:.200}, which this program does not create: remove it first.")


def check_view(cursor: duckdb.DuckDBPyConnection, name: str) -> None:
    """Raise RequestError if a view or table of the lake calls a function that reads anything else."""
    _check_named(cursor, [name])


def _check_functions(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Check the functions and tables a statement uses, including the views and macros behind it."""
    if sql in _harmless:
        return
    ((text,),) = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    parsed = json.loads(text)
    if parsed["error"]:
        raise RequestError(f"The query failed: {parsed['error_message']}")
    _check_parsed(parsed)
    _check_named(cursor, sorted({*_places(parsed, "table_name"), *_table_functions(parsed)}))


def _check_named(cursor: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
    """Check the current and past definitions of these views and macros."""
    wanted = ", ".join(quoted(name.lower()) for name in names if name)
    if not wanted:
        return
    found = cursor.execute(
        f"""
        SELECT sql FROM {_CATALOGUE}.ducklake_view WHERE lower(view_name) IN ({wanted})
        UNION SELECT sql FROM {_CATALOGUE}.ducklake_macro_impl JOIN {_CATALOGUE}.ducklake_macro USING (macro_id)
            WHERE lower(macro_name) IN ({wanted})
        """
    ).fetchall()
    for (definition,) in found:
        if definition not in _harmless:
            _check_functions(cursor, definition)
            _harmless.add(definition)


def _check_parsed(parsed: Any) -> None:
    named = {name.lower(): name for name in _places(parsed, "catalog_name", "schema_name")}
    if inner := sorted(name for low, name in named.items() if low.startswith("__ducklake") or low == LOCKS):
        raise RequestError(f"The query failed: {inner[0]} belongs to the catalogue; `flywheel sql --schema` lists what can be read.")
    tables = set(_places(parsed, "table_name"))
    if files := sorted(name for name in tables if _OF_FILES.search(name)):
        raise RequestError(f"The query failed: {files[0]!r:.200} names a file; a query can only read the lake's own tables.")
    if own := sorted(name for name in tables if name.lower() in OF_CONNECTION):
        raise RequestError(f"The query failed: {own[0]} is about the connection; `flywheel sql --schema` lists what can be read.")
    refused = sorted(set(_table_functions(parsed)) - TABLE_FUNCTIONS)
    if refused:
        raise RequestError(f"The query failed: it may not call {', '.join(refused)}; a query can only read the lake's own tables.")


def _places(node: Any, *fields: str) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            yield from (node.get(name, "") for name in fields)
        for value in node.values():
            yield from _places(value, *fields)
    elif isinstance(node, list):
        for value in node:
            yield from _places(value, *fields)


def _table_functions(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("type") == "TABLE_FUNCTION":
            yield node["function"].get("function_name", "").lower()
        for value in node.values():
            yield from _table_functions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _table_functions(value)
