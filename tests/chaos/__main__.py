"""`python -m tests.chaos`: the wheel under faults, from the command line."""

from __future__ import annotations

import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.cli import run_app
from flows.cli.options import SetOption, print_json
from flows.config import load_config
from tests.chaos.faults import FaultKind
from tests.chaos.journal import Journal
from tests.chaos.run import ChaosSettings, ChaosTest
from warehouse.errors import RequestError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def chaos(
    dir_: Annotated[Path, typer.Option("--dir", help="Folder of the chaos test: its homes, its logs, the list of its faults.")],
    profile: Annotated[str, typer.Option(help="A small profile, by name or by the path of a TOML file.")] = "quickstart",
    turns: Annotated[int, typer.Option(min=1, help="Turns of each wheel.")] = 1,
    faults: Annotated[int, typer.Option(min=1, help="Faults in all.")] = 100,
    kinds: Annotated[str, typer.Option(help="Kinds of faults, with commas between.")] = ",".join(FaultKind),
    every: Annotated[float, typer.Option(min=1.0, help="Seconds before a fault, in the mean.")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="What kinds, moments and victims follow from.")] = 0,
    set_: SetOption = None,
) -> None:
    """Run a wheel undisturbed, and again while its processes are killed at random; compare what came of both. Exit status 1 if anything
    was lost, double, other than it was, or left behind. The result is JSON. Started again, it goes on where it was.

    Example: python -m tests.chaos --profile quickstart --dir runs/chaos --faults 100
    """
    load_config(profile, set_ or [])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the driver ends with the chaos test
    settings = ChaosSettings(profile, tuple(set_ or ()), turns, faults, _kinds(kinds), every, seed)
    result = ChaosTest(Journal(dir_.resolve()), settings).run()
    print_json(asdict(result) | {"held": result.held})
    if not result.held:
        raise typer.Exit(1)


def _kinds(text: str) -> tuple[FaultKind, ...]:
    named = [name.strip() for name in text.split(",")]
    unknown = [name for name in named if name not in list(FaultKind)]
    if unknown:
        raise RequestError(f"--kinds: there is no fault {unknown[0]!r}; choose of {', '.join(FaultKind)}.")
    return tuple(dict.fromkeys(map(FaultKind, named)))


if __name__ == "__main__":
    run_app(app)
