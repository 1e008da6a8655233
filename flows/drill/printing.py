"""A drill's result on the terminal: the faults by kind and stage, and what held in each home."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.drill.work import DrillResult

COUNTED = ("committed", "invalid")
"""Checks that find a number."""


def print_drill(result: DrillResult) -> None:
    """Two tables, and a sentence for all that did not hold."""
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


def _faults_table(result: DrillResult) -> Table:
    """Kinds down, the kind of stage that was at work across."""
    counts = Counter((fault.kind, _stage(fault.at_work)) for fault in result.faults)
    stages = sorted({stage for _, stage in counts})
    table = Table("fault", *stages, "in all", title="faults, by the stage at work", title_justify="left")
    for kind in sorted({kind for kind, _ in counts}):
        table.add_row(kind, *(str(counts[kind, stage] or "") for stage in stages), str(sum(counts[kind, stage] for stage in stages)))
    return table


def _homes_table(result: DrillResult) -> Table:
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
