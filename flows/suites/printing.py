"""A suite's figures, comparison, traits and contamination as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eval.statistics import Interval
from eval.suite_figures import Figure
from eval.traits import Trait
from flows.suites.contamination import ContaminationReport
from flows.suites.reading import SuiteReport

LISTED = 20
"""Tasks that were met in training that are listed; `--json` has all."""


def print_report(report: SuiteReport) -> None:
    """Headline, coverage, figures by k, hops, turns and horizon, cost, comparison; without a result, only why there is none."""
    console = Console()
    console.print(f"[bold]{report.suite}[/bold], {escape(report.policy)}: {escape(report.meaning)}")
    covered = report.coverage
    console.print(
        f"{covered.tasks} tasks, {covered.wanted} attempts: {covered.judged} judged, {covered.invalid} invalid, {covered.missing} missing"
    )
    if report.objection is not None:
        console.print(f"[bold]no result:[/bold] {report.objection}")
        return
    console.print(f"[bold]{report.headline.name} = {_spelt(report.headline)}[/bold]")
    if len(report.ladder) > 1:
        console.print(_figures_table("figure", [(figure.name, figure) for figure in report.ladder]))
    for axis, figures in report.groups.items():
        console.print(_figures_table(axis, [(str(value), figure) for value, figure in figures.items()]))
    _print_cost(console, report)
    if report.against is not None:
        untried = f"no task was judged on both sides: evaluate it too, with --policy {escape(report.against)}"
        told = untried if report.comparison is None else report.comparison.statement
        console.print(f"against {escape(report.against)}: {told}")


def print_traits(suite: str, traits: Sequence[Trait]) -> None:
    """The seven traits."""
    table = Table("trait", "", "why", title=f"{suite}: the traits of a good evaluation", title_justify="left")
    for trait in traits:
        table.add_row(trait.name, trait.state.value, escape(trait.reason))
    Console().print(table)


def print_contamination(policy: str, report: ContaminationReport) -> None:
    """Counts by sort, and the first tasks that were met."""
    console = Console()
    looked = ", ".join(report.looked_at) or "nothing"
    table = Table("met in training", "tasks", title=f"what {escape(policy)} was trained on: {escape(looked)}", title_justify="left")
    for sort, count in report.counts.items():
        table.add_row(sort, str(count))
    console.print(table)
    for name, reason in report.unknown.items():
        console.print(f"not known of {escape(name)}: {escape(reason)}")
    for one in report.met[:LISTED]:
        console.print(f"  {one.sort.value}: {escape(one.task)} in {escape(one.item)} ({escape(one.policy)})", soft_wrap=True)
    if len(report.met) > LISTED:
        console.print(f"  and {len(report.met) - LISTED} more; --json lists all")


def _print_cost(console: Console, report: SuiteReport) -> None:
    spent = report.cost
    if spent is None:
        return
    seconds = "" if spent.seconds is None else f", {spent.seconds:.2f} seconds"
    console.print(
        f"an attempt: {spent.turns:.1f} turns, {spent.calls:.1f} calls, {spent.prompt_tokens:.0f} tokens of the prompt, "
        f"{spent.action_tokens:.0f} of actions, {spent.observation_tokens:.0f} of observations{seconds}"
    )


def _figures_table(first: str, rows: Sequence[tuple[str, Figure]]) -> Table:
    table = Table(first, "tasks", "% (95 % interval)")
    for name, figure in rows:
        table.add_row(name, str(figure.tasks), _spelt(figure))
    return table


def _spelt(figure: Figure) -> str:
    value: Interval | None = figure.estimate
    return "–" if value is None else f"{100 * value.value:.1f} ({100 * value.low:.1f}–{100 * value.high:.1f})"
