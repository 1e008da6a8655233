"""`flywheel data`: the public data sets that profiles and suites read, and fetching them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.options import JsonOption, print_json
from rl.terminal import say

if TYPE_CHECKING:
    from warehouse.public_data.download import Told
    from warehouse.public_data.sets import PublicDataSet

data_app = typer.Typer(help="Public data that profiles and suites read: list it, fetch it.", no_args_is_help=True)


@data_app.command("list")
def list_(json_: JsonOption = False) -> None:
    """Every public data set: what it is, its licence, its size, and where it lies, in the folder FLYWHEEL_DATA or in ~/.cache.

    Example: flywheel data list
    """
    from warehouse.public_data.catalogue import DATA_SETS
    from warehouse.public_data.places import data_root, in_bytes

    root = data_root()
    rows = [_row(data, root) for data in DATA_SETS.values()]
    if json_:
        print_json(rows)
        return
    from flows.cli.rows import print_rows

    shown = ("name", "about", "licence")
    print_rows([{key: row[key] for key in shown} | {"size": in_bytes(row["bytes"]), "path": str(row["path"] or "absent")} for row in rows])
    if absent := [row["name"] for row in rows if row["path"] is None]:
        say(f"  flywheel data get {' '.join(absent)}    # into {root}")


def _row(data: PublicDataSet, root: Path) -> dict[str, Any]:
    about = {"name": data.name, "about": data.about, "licence": data.licence, "bytes": data.size}
    return about | {"sources": data.sources, "path": data.place(root)}


@data_app.command()
def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="films, countries, gsm8k, mbpp, humaneval, musique, webshaper.")],
) -> None:
    """Fetch data sets from their public sources at pinned revisions, check them, and print where each lies. Cut off, it goes on.

    They come into the folder that FLYWHEEL_DATA names, or into ~/.cache/agent-flywheel/data; what is there is not fetched again.

    Example: flywheel data get films gsm8k
    """
    from warehouse.public_data.fetching import fetch
    from warehouse.public_data.places import data_root, data_set, in_bytes

    root = data_root()
    for data in [data_set(name) for name in names]:
        if data.place(root) is None:
            say(f"{data.name}: {in_bytes(data.size)}, {data.licence}, from {', '.join(data.sources)}", sys.stderr)
        with _progress() as told:
            say(fetch(data, root, told))


@contextmanager
def _progress() -> Iterator[Told]:
    """A line on standard error that shows the file on its way; nothing where that is no terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from flows.screen import Screen

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Screen(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        line = progress.add_task("", start=True)
        yield lambda url, done, most: progress.update(line, description=url.rpartition("/")[2], completed=done, total=most)
