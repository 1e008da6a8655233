"""Print the plan as tables for the terminal, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.columns import Columns
from rich.table import Table

from flows.screen import Screen
from flows.sizing.plan import Assumptions, Card, SizingPlan, StageTime
from rl.hardware import GIB

SMALLEST = 0.005
"""Smaller parts, in GiB or seconds, are hidden."""


def print_plan(plan: SizingPlan) -> None:
    console, policy = Screen(highlight=False), plan.policy
    console.print(f"policy: {policy.parameters / 1e6:,.1f} M parameters, {policy.layers} layers, {policy.vocabulary:,} tokens\n")
    console.print(_cards(plan.cards))
    console.print()
    console.print(_stages(plan.stages))
    if any(stage.seconds is None for stage in plan.stages):
        console.print("seconds are known for GPUs only; `flywheel top` shows those of a run")
    given, held = plan.at_once
    console.print(f"\nan engine gets {given:,} trajectories at a time, and its cache fits {held:,}")
    console.print(f"peak disk of an iteration, without the lake: {plan.disk / GIB:,.1f} GiB")
    console.print(f"written in an iteration: {sum(plan.written.values()) / GIB:,.1f} GiB")
    console.print(_list((f"  {name}", f"{size / GIB:,.1f} GiB") for name, size in plan.written.items() if size))
    console.print("\nreserved:")
    console.print(_list((f"  {name}", each) for name, reserved in plan.reservations.items() for each in reserved))
    console.print("\nto change:")
    console.print(_list(("  -", change) for change in plan.changes or ["nothing"]))
    console.print("\nassumed:")
    console.print(Columns([f"  {fact}" for fact in _assumed(plan.assumptions)], padding=(0, 1)))


def _cards(cards: Sequence[Card]) -> Table:
    table = _table(("at peak", "left"), ("GiB", "right"), ("of", "right"), ("on", "left"))
    for card in cards:
        limit = "" if card.limit is None else f"{card.limit / GIB:,.0f}"
        table.add_row(card.name, f"{card.total / GIB:,.2f}", limit, card.device, style="bold" if card.fits else "bold red")
        _add_parts(table, ((name, size / GIB) for name, size in card.parts.items()), places=1)
    return table


def _stages(stages: Sequence[StageTime]) -> Table:
    table = _table(("stage", "left"), ("steps", "right"), ("tokens per step", "right"), ("seconds per step", "right"))
    for stage in stages:
        steps, seconds = "" if stage.steps is None else f"{stage.steps:,}", stage.step_seconds
        table.add_row(stage.stage, steps, f"{stage.tokens:,}", "" if seconds is None else f"{seconds:,.2f}", style="bold")
        _add_parts(table, (stage.seconds or {}).items(), places=3)
    return table


def _add_parts(table: Table, parts: Iterable[tuple[str, float]], places: int) -> None:
    for name, value in parts:
        if value >= SMALLEST:
            table.add_row(f"  {name}", *([""] * (places - 1)), f"{value:,.2f}")


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name, side in columns:
        table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
    return table


def _list(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values; repeated names are left blank."""
    table, above = Table.grid(padding=(0, 1, 0, 0)), ""
    for name, said in rows:
        table.add_row("" if name == above and name.strip() != "-" else name, said)
        above = name
    return table


def _assumed(assumptions: Assumptions) -> list[str]:
    device = assumptions.device
    facts = {**asdict(assumptions), "device": None if device is None else device.name}
    facts |= {} if device is None else {name: value for name, value in asdict(device).items() if name != "name"}
    return [
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}" for name, value in facts.items() if value is not None
    ]
