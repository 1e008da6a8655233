"""The `flywheel lake` commands: pinned snapshots, integrity checks and upkeep."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.options import HomeOption, JsonOption, print_json
from rl.terminal import say

lake_app = typer.Typer(help="Named snapshots and maintenance of a lake.", no_args_is_help=True)


@lake_app.command()
def pin(
    name: Annotated[str, typer.Argument(help="Name for the snapshot.")],
    home: HomeOption,
    at: Annotated[int | None, typer.Option(help="Snapshot to keep; by default the current one.")] = None,
    query: Annotated[str | None, typer.Option(help="A SELECT that makes the pin a dataset, with a digest of its rows.")] = None,
    json_: JsonOption = False,
) -> None:
    """Pin a snapshot, or a dataset, under a name that `flywheel sql --at` accepts.

    Example: flywheel lake pin paper --query "SELECT * FROM tasks WHERE split = 'train'" --home runs/demo
    """
    from dataclasses import asdict

    from flows.lakes import open_to_keep
    from warehouse.upkeep import pin as keep

    with open_to_keep(home) as lake:
        kept = keep(lake, name, at, query)
    if json_:
        print_json(asdict(kept))
    else:
        say(f"{name}: snapshot {kept.snapshot}" + (f", {kept.n_rows} rows, digest {kept.digest}" if kept.query else ""))


@lake_app.command()
def unpin(name: Annotated[str, typer.Argument(help="Name of a pin.")], home: HomeOption) -> None:
    """Remove a pin.

    Example: flywheel lake unpin paper --home runs/demo
    """
    from flows.lakes import open_to_keep
    from warehouse.upkeep import unpin as let_go

    with open_to_keep(home) as lake:
        let_go(lake, name)
    say(f"removed the pin {name}")


@lake_app.command()
def pins(home: HomeOption, json_: JsonOption = False) -> None:
    """List the pins and whether their datasets are unchanged; exit status 1 if one has changed.

    Example: flywheel lake pins --home runs/demo
    """
    from dataclasses import asdict

    from flows.lakes import open_lake
    from warehouse.upkeep import check_pins

    with open_lake(home) as lake:
        checked = check_pins(lake)
    if json_:
        print_json([asdict(one.pin) | {"same": one.same} for one in checked])
    else:
        words = {True: "same rows", False: "OTHER ROWS", None: ""}
        for one in checked:
            say(f"{one.pin.name:24} {one.pin.snapshot:8} {one.pin.digest or '':18} {words[one.same]}".rstrip())
    if any(one.same is False for one in checked):
        raise typer.Exit(1)


@lake_app.command()
def check(
    home: HomeOption,
    record: Annotated[bool, typer.Option("--record", help="Record digests for files that have none, as they are now.")] = False,
    json_: JsonOption = False,
) -> None:
    """Check the size and SHA-256 of every data file; exit status 1 if one has changed or is missing.

    Each write records digests. Files from earlier versions or from a killed run have none until the next write.

    Example: flywheel lake check --home runs/demo
    """
    from dataclasses import asdict

    from flows.lakes import place_of
    from warehouse.checksums import FileState, check_lake

    files, recorded = check_lake(place_of(home), record)
    broken = [file for file in files if file.state in (FileState.changed, FileState.missing)]
    if json_:
        print_json([asdict(file) for file in files])
    else:
        for file in broken:
            say(f"{file.state:8} {file.path}")
        unrecorded = sum(file.state is FileState.unrecorded for file in files)
        advice = "; `flywheel lake check --record` records them" if unrecorded else ""
        say(f"{len(files)} files: {len(broken)} changed or missing, {unrecorded} without a digest{advice}, {recorded} recorded now")
    if broken:
        raise typer.Exit(1)


@lake_app.command()
def compact(home: HomeOption) -> None:
    """Merge small files and remove files that no snapshot needs. Readers and writers may continue.

    Example: flywheel lake compact --home runs/demo
    """
    from flows.lakes import open_to_keep
    from warehouse.upkeep import compact as work

    with open_to_keep(home) as lake:
        work(lake)
        sizes = "SELECT sum(file_count)::BIGINT AS files, sum(file_size_bytes)::DOUBLE AS bytes FROM ducklake_table_info('lake')"
        (row,) = lake.query(sizes).to_pylist()
    say(f"{row['files']} files, {row['bytes'] / 1e6:.1f} MB")


@lake_app.command()
def retain(
    days: Annotated[float, typer.Argument(min=0, help="Age in days up to which all snapshots are kept.")],
    home: HomeOption,
) -> None:
    """Expire older snapshots, except the latest, pinned ones, and those that a policy was trained on.

    Example: flywheel lake retain 30 --home runs/demo
    """
    from datetime import timedelta

    from flows.lakes import open_to_keep
    from warehouse.upkeep import expire_snapshots as work

    with open_to_keep(home) as lake:
        say(f"{work(lake, timedelta(days=days))} snapshots expired")
