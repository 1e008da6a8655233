"""Rows as people and programs want them: a table that fits the terminal, JSON, JSON lines, CSV, Markdown, Parquet.

A table shows values as far as they fit and says how many rows there are; all other forms hold every row and every value as it is.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow
import pyarrow.parquet
from rich.table import Table
from rich.text import Text

from flows.cli.options import SHOWN_ROWS, Format, json_text, print_json
from flows.screen import Screen
from rl.terminal import in_line, say
from warehouse.errors import RequestError

LONGEST_CELL = 80
"""Characters of a value that a table shows; identities are never cut, and the other forms hold all of it."""
_IDENTITIES = ("id", "key", "policy", "run", "digest", "snapshot", "path", "home")


def print_result(rows: pyarrow.Table, form: str, most: int = SHOWN_ROWS) -> None:
    """Print `rows`; of a table at most `most`, 0 for all.

    Raises:
        RequestError: Parquet on a terminal, which cannot show it.
    """
    _FORMS[Format(form)](_with_spans_as_text(_with_names_apart(rows)), most)


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print dictionaries as a table with a column for each key of any of them."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    print_result(pyarrow.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows]), "table", most=0)


def _with_names_apart(rows: pyarrow.Table) -> pyarrow.Table:
    """Columns of one name get numbers, `policy`, `policy_2`: where a row is a dictionary, the last of them would hide the others."""
    names: list[str] = []
    for name in rows.column_names:
        number, own = 1, name
        while own in names:
            number += 1
            own = f"{name}_{number}"
        names.append(own)
    return rows.rename_columns(names)


def _with_spans_as_text(rows: pyarrow.Table) -> pyarrow.Table:
    """Spans of time, such as `finished - started`, as people write them: Arrow's own form is a tuple of months, days and nanoseconds."""
    for number, name in enumerate(rows.column_names):
        if pyarrow.types.is_interval(rows.schema.types[number]):
            spans = [None if span is None else _span(*span) for span in rows.column(number).to_pylist()]
            rows = rows.set_column(number, name, pyarrow.array(spans, pyarrow.string()))
    return rows


def _span(months: int, days: int, nanoseconds: int) -> str:
    """A span of time: `3 months`, `2 days 0:10:00.000`, `0:00:01.258`."""
    long = [f"{count} {unit}" for count, unit in ((months, "months"), (days, "days")) if count]
    seconds, rest = divmod(abs(nanoseconds), 10**9)
    clock = f"{'-' if nanoseconds < 0 else ''}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest // 10**6:03}"
    return " ".join([*long, clock] if nanoseconds or not long else long)


def _print_json(rows: pyarrow.Table, most: int) -> None:
    print_json(rows.to_pylist())


def _print_jsonl(rows: pyarrow.Table, most: int) -> None:
    for row in rows.to_pylist():
        print(json_text(row))


def _print_csv(rows: pyarrow.Table, most: int) -> None:
    text = io.StringIO(newline="")
    writer, quoting = (csv.writer(text, lineterminator="\n", quoting=quoting) for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    for row in (rows.column_names, *(row.values() for row in rows.to_pylist())):
        cells = [json_text(value) if isinstance(value, list | dict) else value for value in row]
        (quoting if any("\r" in str(cell) for cell in cells) else writer).writerow(cells)  # which readers take for the end of a line
    sys.stdout.write(text.getvalue())


def _print_markdown(rows: pyarrow.Table, most: int) -> None:
    lines = [rows.column_names, ["---"] * rows.num_columns, *(map(_plain, row.values()) for row in rows.to_pylist())]
    for cells in lines:
        say(f"| {' | '.join(in_line(cell).replace('|', chr(92) + '|') for cell in cells)} |")


def _print_parquet(rows: pyarrow.Table, most: int) -> None:
    if sys.stdout.isatty():
        raise RequestError("Parquet is binary and a terminal cannot show it: send it into a file, … --format parquet > rows.parquet.")
    whole = io.BytesIO()
    pyarrow.parquet.write_table(rows, whole)
    sys.stdout.buffer.write(whole.getvalue())


def _print_table(rows: pyarrow.Table, most: int) -> None:
    shown = rows.slice(0, most) if most else rows
    cells = [[_cell(name, value) for name, value in row.items()] for row in shown.to_pylist()]
    names = [in_line(name) for name in rows.column_names]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    if sys.stdout.isatty() and sum(widths) + 3 * len(widths) + 1 > Screen().width:
        _print_upright(names, cells)
    else:
        _print_flat(names, cells, sum(widths) + 3 * len(widths) + 1)
    left = f" of {rows.num_rows:,}; `--rows 0` shows all" if shown.num_rows < rows.num_rows else ""
    say(f"{shown.num_rows:,} row{'' if shown.num_rows == 1 else 's'}{left}")


def _print_flat(names: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> None:
    table = Table()
    for name in names:
        table.add_column(Text(name))
    for row in cells:
        table.add_row(*map(Text, row))
    Screen(width=max(width, Screen().width)).print(table)


def _print_upright(names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """A block a row, a line a column: for rows that are wider than the terminal."""
    console, indent = Screen(), max(map(len, names))
    for number, row in enumerate(cells, start=1):
        console.print(Text(f"── row {number} ", style="dim"))
        for name, value in zip(names, row, strict=True):
            console.print(Text.assemble((f"{name:>{indent}}  ", "bold"), value), soft_wrap=True)


def _cell(name: str, value: Any) -> str:
    text = in_line(_plain(value))
    whole = len(text) <= LONGEST_CELL or any(name == each or name.endswith(f"_{each}") for each in _IDENTITIES)
    return text if whole else text[: LONGEST_CELL - 1] + "…"


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


_FORMS: dict[Format, Callable[[pyarrow.Table, int], None]] = {
    Format.table: _print_table,
    Format.json: _print_json,
    Format.jsonl: _print_jsonl,
    Format.csv: _print_csv,
    Format.markdown: _print_markdown,
    Format.parquet: _print_parquet,
}
