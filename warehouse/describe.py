"""What the lake holds, in its own words: the comments that stand in its catalogue."""

from __future__ import annotations

from dataclasses import dataclass

from warehouse.catalogue import NAME
from warehouse.lake import Lake
from warehouse.views import MACROS


@dataclass(frozen=True, slots=True)
class Described:
    """A table, view or macro, or one of its columns (`column` and `type` are then given); `kind` is `table`, `view` or `macro`."""

    name: str
    kind: str
    column: str | None
    type: str | None
    comment: str


_RELATIONS = f"""
SELECT table_name AS name, 'table' AS kind, comment FROM duckdb_tables() WHERE database_name = '{NAME}'
UNION ALL
SELECT view_name, 'view', comment FROM duckdb_views() WHERE database_name = '{NAME}'
ORDER BY kind, name
"""
_COLUMNS = f"""
SELECT table_name AS name, column_name AS "column", data_type AS type, coalesce(comment, '') AS comment
FROM duckdb_columns() WHERE database_name = '{NAME}' ORDER BY name, column_index
"""


def describe(lake: Lake) -> list[Described]:
    """Every table, then every view, each before its columns; then the macros, of which a catalogue keeps no comment."""
    columns: dict[str, list[dict[str, str]]] = {}
    for column in lake.query(_COLUMNS).to_pylist():
        columns.setdefault(column["name"], []).append(column)
    told = []
    for relation in lake.query(_RELATIONS).to_pylist():
        name, kind = relation["name"], relation["kind"]
        told.append(Described(name, kind, None, None, relation["comment"] or ""))
        told += [Described(name, kind, column["column"], column["type"], column["comment"]) for column in columns.get(name, ())]
    return told + [Described(macro.signature, "macro", None, None, macro.comment) for macro in MACROS.values()]
