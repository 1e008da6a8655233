"""SQL from a person: one statement, a SELECT, with errors that say what to mend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from warehouse.catalogue import cursor_in_lake
from warehouse.errors import RequestError


def run_query(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] | Mapping[str, Any]) -> pa.Table:
    """The rows of `sql` on a connection made for reading; raises `RequestError` where it is not one SELECT or does not run."""
    with cursor_in_lake(connection) as cursor:
        try:
            statements = cursor.extract_statements(sql)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise RequestError(f"Only one SELECT statement can be asked of the lake, and this is not one: {sql.strip()[:200]}")
            given = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
            return cursor.execute(sql, given).to_arrow_table()
        except duckdb.Error as error:
            raise RequestError(f"The query failed: {_first_paragraph(error)}") from error


def _first_paragraph(error: duckdb.Error) -> str:
    return " ".join(str(error).split("\n\n")[0].split())
