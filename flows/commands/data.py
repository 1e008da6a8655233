"""Commands that bring data in, judge it and take it out: `verify`, `export`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import HomeOption


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(verify)
    app.command()(export)


def verify(
    kind: Annotated[str, typer.Argument(help="qa_em, qa_f1, gsm8k or set.")],
    input_: Annotated[Path, typer.Option("--input", help="JSON lines {id, gold, pred, options?}.")],
    output: Annotated[Path, typer.Option("--output", help="JSON lines {id, value, verdict, error}.")],
) -> None:
    """Judge rows by a verifier. A row that cannot be judged has an error and no value.

    Example: flywheel verify qa_em --input rows.jsonl --output scored.jsonl
    """
    from eval.rows import read_rows, verify_rows

    judged = invalid = 0
    rows = verify_rows(kind, read_rows(input_))
    draft = output.with_name(f"{output.name}.part")  # a run that stops half-way leaves no half of an output under its name
    with draft.open("w") as file:
        for row in rows:
            judged, invalid = judged + 1, invalid + (row.value is None)
            file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
    draft.replace(output)
    print(f"{judged} rows judged by {kind}, {invalid} of them invalid, written to {output}")


def export(
    kind: Annotated[str, typer.Argument(help="duckdb for one DuckDB file of all tables, or a table's name.")],
    home: HomeOption,
    to: Annotated[Path, typer.Option(help="The file to write: .duckdb, or .parquet or .jsonl for a table.")],
) -> None:
    """Take data out of the lake: everything in one DuckDB file, or a table as Parquet or JSON lines.

    Example: flywheel export duckdb --home runs/demo --to demo.duckdb
    """
    from flows.lakes import open_lake
    from warehouse.export import export_database, export_table

    with open_lake(home) as lake:
        if kind == "duckdb":
            export_database(lake, to)
        else:
            export_table(lake, kind, to)
    print(to)
