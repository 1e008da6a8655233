"""The plan as tables on the terminal."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from flows.screen import Screen
from flows.sizing.assumptions import Assumptions
from flows.sizing.cards import Card
from flows.sizing.plan import SizingPlan
from flows.sizing.times import StageTime
from rl.memory import GIB


def print_plan(plan: SizingPlan) -> None:
    """Cards, times, disk, reservations, what to change, and what was assumed."""
    console = Screen(highlight=False)
    policy = plan.policy
    console.print(f"policy: {policy.parameters / 1e6:,.1f} M parameters, {policy.layers} layers, {policy.vocabulary:,} tokens\n")
    console.print(_cards(plan.cards))
    console.print(_stages(plan.stages))
    given, held = plan.at_once
    console.print(f"\nan engine is given {given:,} trajectories at a time, and its cache holds {held:,} of them")
    console.print(f"disk of an iteration at its fullest, the lake left out: {plan.disk / GIB:,.1f} GiB")
    written = ", ".join(f"{name} {size / GIB:,.1f}" for name, size in plan.written.items() if size)
    console.print(f"written in an iteration: {sum(plan.written.values()) / GIB:,.1f} GiB: {written}", soft_wrap=True)
    for name, reserved in plan.reservations.items():
        console.print(f"reserved in {name}: {'; '.join(reserved)}", soft_wrap=True)
    console.print("\nto change:" if plan.changes else "\nto change: nothing")
    for change in plan.changes:
        console.print(f"  - {change}", soft_wrap=True)
    console.print(f"\nassumed: {_assumed(plan.assumptions)}", soft_wrap=True)


def _cards(cards: list[Card]) -> Table:
    table = Table("at its fullest", "on", "GiB", "of", "what it is", box=None, header_style="dim", padding=(0, 2, 0, 0))
    for card in cards:
        parts = ", ".join(f"{name} {size / GIB:,.2f}" for name, size in card.parts.items() if size)
        limit = "" if card.limit is None else f"{card.limit / GIB:,.0f}"
        table.add_row(card.name, card.device, f"{card.total / GIB:,.1f}", limit, parts, style=None if card.fits else "bold red")
    return table


def _stages(stages: list[StageTime]) -> Table:
    table = Table("stage", "steps", "tokens a step", "seconds a step", "of which", box=None, header_style="dim", padding=(0, 2, 0, 0))
    for stage in stages:
        seconds, parts = stage.step_seconds, stage.seconds or {}
        table.add_row(
            stage.stage,
            "" if stage.steps is None else f"{stage.steps:,}",
            f"{stage.tokens:,}",
            "not known on CPUs" if seconds is None else f"{seconds:,.1f}",
            ", ".join(f"{name} {value:,.1f}" for name, value in parts.items()),
        )
    return table


def _assumed(assumptions: Assumptions) -> str:
    facts = {**asdict(assumptions), "device": assumptions.device.name}
    facts |= {name: value for name, value in asdict(assumptions.device).items() if name != "name"}
    return ", ".join(f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}" for name, value in facts.items())
