"""The lake says what it holds: no table, column or view without its meaning."""

from __future__ import annotations

from warehouse import Lake
from warehouse.describe import describe
from warehouse.schema import TABLES
from warehouse.views import MACROS, VIEWS


def test_every_table_column_view_and_macro_has_a_meaning(lake: Lake) -> None:
    told = describe(lake)
    assert {row.name for row in told if row.kind == "table"} == {table.name for table in TABLES} | {"migrations"}
    assert {row.name for row in told if row.kind == "view"} == set(VIEWS)
    assert [row.name for row in told if row.kind == "macro"] == [macro.signature for macro in MACROS.values()]
    silent = [(row.name, row.column) for row in told if not row.comment and not (row.kind == "view" and row.column)]
    assert silent == []


def test_columns_stand_behind_their_table_in_its_order(lake: Lake) -> None:
    facts = [row.column for row in describe(lake) if row.name == "facts"]
    assert facts == [None, "subject", "relation", "object", "documents", "source", "recorded"]
