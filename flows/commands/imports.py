"""`flywheel import`: foreign questions, trajectories and graphs into a home's lake."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import HomeOption, JsonOption, print_json


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("import")(import_)


def import_(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help="What the file is: webshaper, …; a wrong name prints all there are.")],
    path: Annotated[Path, typer.Argument(help="The file to read.")],
    home: HomeOption,
    json_: JsonOption = False,
) -> None:
    """Read a foreign file into the lake. A row that is not well formed is quarantined with its reason and its line.

    Example: flywheel import webshaper webshaper.500.jsonl --home runs/demo
    """
    from flows.imports import import_file

    figures = import_file(format_, path, home)
    if json_:
        print_json(figures)
        return
    tables = {name: counts for name, counts in figures.items() if isinstance(counts, dict) and name != "reasons"}
    read = "; ".join(f"{counts['read']} {name}, {counts['new']} of them new" for name, counts in tables.items()) or "nothing imported"
    print(f"{figures['rows']} rows: {read}; {figures['quarantined']} quarantined")
    for reason, count in figures["reasons"].items():
        print(f"  {count:6} {reason}")
    if figures["quarantined"]:
        print(f"  flywheel sql \"SELECT kind, reason, item FROM failures WHERE stage = 'import'\" --home {home}")
