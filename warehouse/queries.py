"""SQL from a person: one statement, a SELECT, with errors that say what to mend.

A connection made for reading opens no file but the lake's own. Some functions of DuckDB's extensions read other databases without
asking the connection (`sqlite_scan`), and some run SQL that stands in a string: of functions that give tables, those alone may be
called that are known to read nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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


def run_query(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] | Mapping[str, Any]) -> pa.Table:
    """The rows of `sql` on a connection made for reading; raises `RequestError` where it is not one SELECT or does not run."""
    with cursor_in_lake(connection) as cursor:
        try:
            statements = cursor.extract_statements(sql)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise RequestError(f"Only one SELECT statement can be asked of the lake, and this is not one: {sql.strip()[:200]}")
            _check_functions(cursor, sql)
            given = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
            return cursor.execute(sql, given).to_arrow_table()
        except duckdb.Error as error:
            raise RequestError(f"The query failed: {first_paragraph(error)}") from error


def first_paragraph(error: duckdb.Error) -> str:
    """What an error of DuckDB says, in one line without its hints."""
    return " ".join(str(error).split("\n\n")[0].split())


def _check_functions(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    ((text,),) = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    parsed = json.loads(text)
    if parsed["error"]:
        raise RequestError(f"The query failed: {parsed['error_message']}")
    refused = sorted(set(_table_functions(parsed)) - TABLE_FUNCTIONS)
    if refused:
        raise RequestError(f"The query failed: it may not call {', '.join(refused)}; a query reads the lake's own tables and nothing else.")


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
