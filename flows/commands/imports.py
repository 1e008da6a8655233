"""Commands that bring data in: `import` reads foreign files into a home's lake, `extract` makes a graph out of plain text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import HomeOption, JsonOption, ProfileOption, SetOption, print_json


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("import")(import_)
    app.command()(extract)


def import_(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help="What the file is: openai, inspect, …; a wrong name prints all.")],
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


def extract(
    pages: Annotated[Path, typer.Argument(help="A folder of Markdown and text, or one file of documents (.csv, .tsv, .jsonl, .parquet).")],
    to: Annotated[Path, typer.Option(help="The folder that the graph and the documents are written to, for corpus.kind=files.")],
    profile: ProfileOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Have a teacher read facts out of plain text. A fact is kept if its words stand in the text; what is dropped is counted by reason.

    Example: flywheel extract notes --to notes-graph --set synth.teacher.kind=openai --set synth.teacher.model=Qwen/Qwen3-8B
    """
    from flows.config import load_config
    from flows.extraction import extract as work

    figures = work(pages, to, load_config(profile or "quickstart", set_ or []).synth)
    if json_:
        print_json(figures)
        return
    print(f"{figures['documents']} documents: {figures['facts']} facts, {figures['dropped']} statements or pages dropped; written to {to}")
    for reason, count in figures["reasons"].items():
        print(f"  {count:6} {reason}")
