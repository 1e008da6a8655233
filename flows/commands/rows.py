"""Rows of a query, printed as a table, JSON or CSV."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flows.commands.options import print_json

if TYPE_CHECKING:
    import pyarrow

    from warehouse.describe import Described

LONGEST_CELL = 80
"""Characters of a value that a table shows; JSON and CSV hold all of it."""


def print_result(rows: pyarrow.Table, form: str) -> None:
    """Print `rows` in the form `table`, `json` or `csv`."""
    rows = _with_spans_as_text(rows)
    if form == "json":
        print_json(rows.to_pylist())
    elif form == "csv":
        _print_csv(rows)
    else:
        _print_table(rows)


def print_schema(described: Sequence[Described], form: str) -> None:
    """Print what the lake holds: as text to read, or its rows as JSON or CSV."""
    if form != "table":
        import pyarrow

        print_result(pyarrow.Table.from_pylist([asdict(row) for row in described]), form)
        return
    for row in described:
        if row.column is None:
            print(f"\n{row.name} ({row.kind}): {row.comment}")
        else:
            print(f"    {row.column:20} {row.type:30} {row.comment}".rstrip())


def _with_spans_as_text(rows: pyarrow.Table) -> pyarrow.Table:
    """Spans of time, such as `finished - started`, as people write them: Arrow's own form is a tuple of months, days and nanoseconds."""
    from pyarrow import array, string, types

    for number, name in enumerate(rows.column_names):
        if types.is_interval(rows.schema.types[number]):
            spans = [None if span is None else _span(*span) for span in rows.column(number).to_pylist()]
            rows = rows.set_column(number, name, array(spans, string()))
    return rows


def _span(months: int, days: int, nanoseconds: int) -> str:
    """A span of time: `3 months`, `2 days 0:10:00.000`, `0:00:01.258`."""
    long = [f"{count} {unit}" for count, unit in ((months, "months"), (days, "days")) if count]
    seconds, rest = divmod(abs(nanoseconds), 10**9)
    clock = f"{'-' if nanoseconds < 0 else ''}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest // 10**6:03}"
    return " ".join([*long, clock] if nanoseconds or not long else long)


def _print_csv(rows: pyarrow.Table) -> None:
    import csv

    writer = csv.writer(sys.stdout)
    writer.writerow(rows.column_names)
    writer.writerows(tuple(row.values()) for row in rows.to_pylist())


def _print_table(rows: pyarrow.Table) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*rows.column_names)
    for row in rows.to_pylist():
        table.add_row(*(_cell(value) for value in row.values()))
    Console().print(table)
    print(f"{rows.num_rows} row{'' if rows.num_rows == 1 else 's'}")


def _cell(value: Any) -> str:
    from rich.markup import escape

    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return escape(text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…")
