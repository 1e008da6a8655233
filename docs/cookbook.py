"""Runs every query of docs/sql.md on a home and writes its answer below it: `python docs/cookbook.py HOME [--check]`.

A query is a block marked sql; the block marked text that follows is its answer, made anew. With `--check` the page stays as it is, and
a query that fails ends the run with status 1.
"""

from __future__ import annotations

import argparse
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from warehouse import Lake, RequestError

PAGE = Path(__file__).parent / "sql.md"
LONGEST_CELL, LONGEST_TABLE = 44, 12
_BLOCK = re.compile(r"```sql\n(?P<sql>.*?)```\n(?:\n```text\n.*?```\n)?", re.S)


def queries(page: str) -> list[str]:
    """The queries of a page, in their order."""
    return [found["sql"] for found in _BLOCK.finditer(page)]


def answered(page: str, lake: Lake) -> str:
    """The page with the answer of `lake` below every query."""
    return _BLOCK.sub(lambda found: f"```sql\n{found['sql']}```\n\n```text\n{table(lake, found['sql'])}\n```\n", page)


def table(lake: Lake, sql: str) -> str:
    """The rows of a query in aligned columns, numbers to the right; long values and long tables are cut, and say so."""
    found = lake.query(sql)
    rows = [[cell(value) for value in row.values()] for row in found.to_pylist()]
    shown = [found.column_names, *rows[:LONGEST_TABLE]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    right = [all(isinstance(value, int | float | Decimal | None) for value in column.to_pylist()) for column in found.columns]
    lines = ["  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip() for row in shown]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, *([f"… {len(rows)} rows"] if len(rows) > LONGEST_TABLE else [])])


def cell(value: Any) -> str:
    """One value as the page shows it."""
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"


def main() -> None:
    """Answer every query, or check that all of them run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    page = PAGE.read_text()
    try:
        with Lake(given.home, read_only=True) as lake:
            written = answered(page, lake)
    except RequestError as error:
        sys.exit(str(error))
    if not given.check:
        PAGE.write_text(written)
    print(f"{len(queries(page))} queries answered")


if __name__ == "__main__":
    main()
