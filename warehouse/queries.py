"""SQL from a person: one statement, a SELECT, with errors that say what to mend.

A connection made for reading opens no file but the lake's own. Some functions of DuckDB's extensions read other databases without
asking the connection (`sqlite_scan`), and some run SQL that stands in a string: of functions that give tables, those alone may be
called that are known to read nothing else.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from warehouse.connections import cursor_in_lake
from warehouse.errors import RequestError
from warehouse.views import MACROS

TABLE_FUNCTIONS = frozenset(MACROS) | {
    "range", "generate_series", "unnest", "repeat", "repeat_row", "summary", "json_each", "json_tree",
    "duckdb_tables", "duckdb_columns", "duckdb_views", "duckdb_functions", "duckdb_types", "pragma_table_info",
    "ducklake_snapshots", "ducklake_current_snapshot", "ducklake_last_committed_snapshot", "ducklake_table_info",
    "ducklake_table_changes", "ducklake_table_insertions", "ducklake_table_deletions", "ducklake_list_files",
}  # fmt: skip
"""The functions that a query may call for a table."""


def run_query(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] | Mapping[str, Any], timeout_seconds: float | None = None
) -> pa.Table:
    """The rows of `sql` on a connection made for reading.

    Raises:
        RequestError: it is not one SELECT, does not run, wants more memory than there is for it, or takes longer than `timeout_seconds`.
    """
    with cursor_in_lake(connection) as cursor, _interrupted_after(cursor, timeout_seconds):
        try:
            statements = cursor.extract_statements(sql)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise RequestError(f"Only one SELECT statement can be asked of the lake, and this is not one: {sql.strip()[:200]}")
            _check_functions(cursor, sql)
            given = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
            return cursor.execute(sql, given).to_arrow_table()
        except duckdb.InterruptException as error:
            raise RequestError(f"The query took longer than {timeout_seconds:g} seconds; --timeout gives it more.") from error
        except duckdb.OutOfMemoryException as error:
            raise RequestError("The query needs more memory than half of this machine's; ask for fewer rows or columns.") from error
        except duckdb.Error as error:
            raise RequestError(f"The query failed: {first_paragraph(error)}") from error


@contextmanager
def _interrupted_after(cursor: duckdb.DuckDBPyConnection, seconds: float | None) -> Iterator[None]:
    """Stops what the cursor runs when it has taken so long."""
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
    """What an error of DuckDB says, in one line without its hints."""
    return " ".join(str(error).split("\n\n")[0].split())


def _check_functions(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    ((text,),) = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    parsed = json.loads(text)
    if parsed["error"]:
        raise RequestError(f"The query failed: {parsed['error_message']}")
    if inner := sorted(name for name in _catalogues(parsed) if name.lower().startswith("__ducklake")):
        raise RequestError(f"The query failed: {inner[0]} is the catalogue's own; `flywheel sql --schema` lists what can be read.")
    refused = sorted(set(_table_functions(parsed)) - TABLE_FUNCTIONS)
    if refused:
        raise RequestError(f"The query failed: it may not call {', '.join(refused)}; a query reads the lake's own tables and nothing else.")


def _catalogues(node: Any) -> Iterator[str]:
    """The catalogues and schemas that tables are read from, anywhere in a parsed statement."""
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            yield from (node.get("catalog_name", ""), node.get("schema_name", ""))
        for value in node.values():
            yield from _catalogues(value)
    elif isinstance(node, list):
        for value in node:
            yield from _catalogues(value)


def _table_functions(node: Any) -> Iterator[str]:
    """The names of functions that stand where a table may, anywhere in a parsed statement."""
    if isinstance(node, dict):
        if node.get("type") == "TABLE_FUNCTION":
            yield node["function"].get("function_name", "").lower()
        for value in node.values():
            yield from _table_functions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _table_functions(value)
