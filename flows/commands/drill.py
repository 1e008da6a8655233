"""`flywheel drill`: the wheel under faults."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import JsonOption, SetOption, print_json

if TYPE_CHECKING:
    from flows.drill.faults import FaultKind


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(drill)


def drill(
    dir_: Annotated[Path, typer.Option("--dir", help="Folder of the drill: its homes, its logs, the list of its faults.")],
    profile: Annotated[str, typer.Option(help="A small profile, by name or by the path of a TOML file.")] = "quickstart",
    turns: Annotated[int, typer.Option(min=1, help="Turns of each wheel.")] = 1,
    faults: Annotated[int, typer.Option(min=1, help="Faults in all.")] = 100,
    kinds: Annotated[str, typer.Option(help="Kinds of faults, with commas between.")] = "driver,worker,engine,learner,server,disk",
    every: Annotated[float, typer.Option(min=1.0, help="Seconds before a fault, in the mean.")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="What kinds, moments and victims follow from.")] = 0,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Run a wheel undisturbed, and again while its processes are killed at random; compare what came of both. Exit status 1 if anything
    was lost, double, other than it was, or left behind. Started again, it goes on where it was.

    Example: flywheel drill --profile tests/end_to_end/small.toml --dir runs/drill --faults 100
    """
    from dataclasses import asdict

    from flows.config import load_config
    from flows.drill.ledger import Ledger
    from flows.drill.printing import print_drill
    from flows.drill.work import Asked, Drill

    load_config(profile, set_ or [])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the driver ends with the drill
    asked = Asked(profile, tuple(set_ or ()), turns, faults, _kinds(kinds), every, seed)
    result = Drill(Ledger(dir_.resolve()), asked).run()
    if json_:
        print_json(asdict(result) | {"held": result.held})
    else:
        print_drill(result)
    if not result.held:
        raise typer.Exit(1)


def _kinds(text: str) -> tuple[FaultKind, ...]:
    """The kinds that are named. Raises RequestError where there is no such kind."""
    from flows.drill.faults import FaultKind
    from warehouse.errors import RequestError

    named = [name.strip() for name in text.split(",")]
    unknown = [name for name in named if name not in list(FaultKind)]
    if unknown:
        raise RequestError(f"--kinds: there is no fault {unknown[0]!r}; choose of {', '.join(FaultKind)}.")
    return tuple(dict.fromkeys(map(FaultKind, named)))
