"""`python -m tests.chaos`: the wheel under faults, from the command line."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.cli import run_app
from flows.cli.options import JsonOption, SetOption, print_json
from flows.config import load_config
from tests.chaos.faults import FaultKind
from tests.chaos.journal import Journal
from tests.chaos.run import ChaosResult, ChaosSettings, ChaosTest
from warehouse.errors import RequestError

COUNTED = ("committed", "invalid")
"""Checks that find a number."""

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
    json_: JsonOption = False,
) -> None:
    """Run a wheel undisturbed, and again while its processes are killed at random; compare what came of both. Exit status 1 if anything
    was lost, double, other than it was, or left behind. Started again, it goes on where it was.

    Example: python -m tests.chaos --profile quickstart --dir runs/chaos --faults 100
    """
    load_config(profile, set_ or [])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the driver ends with the chaos test
    settings = ChaosSettings(profile, tuple(set_ or ()), turns, faults, _kinds(kinds), every, seed)
    result = ChaosTest(Journal(dir_.resolve()), settings).run()
    if json_:
        print_json(asdict(result) | {"held": result.held})
    else:
        print_result(result)
    if not result.held:
        raise typer.Exit(1)


def _kinds(text: str) -> tuple[FaultKind, ...]:
    """The kinds that are named. Raises RequestError where there is no such kind."""
    named = [name.strip() for name in text.split(",")]
    unknown = [name for name in named if name not in list(FaultKind)]
    if unknown:
        raise RequestError(f"--kinds: there is no fault {unknown[0]!r}; choose of {', '.join(FaultKind)}.")
    return tuple(dict.fromkeys(map(FaultKind, named)))


def print_result(result: ChaosResult) -> None:
    """Print two tables, and a sentence for all that did not hold."""
    console = Console()
    console.print(_faults_table(result))
    console.print(_homes_table(result))
    for home in result.homes:
        for check in home.checks:
            if not check.held:
                console.print(f"[bold]{home.home}, {check.name}:[/bold] {escape(check.found)}", soft_wrap=True)
    if result.left_out:
        console.print(escape(result.left_out), soft_wrap=True)
    console.print("everything held" if result.held else "[bold]not everything held[/bold]")


def _faults_table(result: ChaosResult) -> Table:
    """Kinds down, the kind of stage that was at work across."""
    counts = Counter((fault.kind, _stage(fault.at_work)) for fault in result.faults)
    stages = sorted({stage for _, stage in counts})
    table = Table("fault", *stages, "in all", title="faults, by the stage at work", title_justify="left")
    for kind in sorted({kind for kind, _ in counts}):
        table.add_row(kind, *(str(counts[kind, stage] or "") for stage in stages), str(sum(counts[kind, stage] for stage in stages)))
    return table


def _homes_table(result: ChaosResult) -> Table:
    """Homes down; what was counted, and how many of the checks held."""
    names = [check.name for check in result.homes[0].checks] if result.homes else []
    table = Table("home", "faults", "drivers", *COUNTED, "held", title=f"looked at: {', '.join(names)}", title_justify="left")
    for home in result.homes:
        counted = (check.found if check.held else "[bold]NO[/bold]" for check in home.checks if check.name in COUNTED)
        held = sum(check.held for check in home.checks)
        table.add_row(home.home, str(home.faults), str(home.drivers), *counted, f"{held} of {len(home.checks)}")
    return table


def _stage(at_work: str | None) -> str:
    """The stage in a run's id: `eval` of eval-t1-sft-held_out, `rl` of t1-rl."""
    if at_work is None:
        return "–"
    return "eval" if at_work.startswith("eval-") else at_work.split("-")[1]


if __name__ == "__main__":
    run_app(app)
