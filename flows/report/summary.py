"""Contents of the report's headline and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eval.suites.figures import LARGEST_INVALID_SHARE
from flows.report.data import Evaluation, ReportData, Row, is_compared, rounds_of, stage_order, wheel_evaluations
from flows.report.plots import compared_runs, variant_name
from flows.results import HARD_SPACE, Judged, Standing, comparison, harm, headline, largest_first, percent, standings


class SummaryRow(NamedTuple):
    """One stage of an iteration: its evaluation on each suite (None if absent), and its standing on the main suite."""

    turn: int
    stage: str
    policy: str
    cells: tuple[Evaluation | None, ...]
    standing: Standing | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Table of success by stage and the sentences above it: headline, detail, harmful stages, unreliable evaluations."""

    headline: str
    detail: str
    harm: tuple[str, ...]
    suites: tuple[str, ...]
    rows: tuple[SummaryRow, ...]
    unreliable: tuple[str, ...]


def summarize(data: ReportData) -> Summary:
    """Summarize success by iteration and stage."""
    cells = {(e.turn, e.stage, e.suite): e for e in wheel_evaluations(data) if e.hops is None}
    suites = tuple(largest_first((cell.suite, cell.judged) for cell in cells.values()))
    places = sorted({(turn, stage) for turn, stage, _ in cells}, key=lambda place: (place[0], stage_order(place[1])))
    on_main = [judged for turn, stage in places if (judged := _judged(cells.get((turn, stage, suites[0])), data))]
    wheel = {standing.judged.policy: standing for standing in standings(on_main)}
    rows = []
    for turn, stage in places:
        found = tuple(cells.get((turn, stage, suite)) for suite in suites)
        policy = next(cell.policy for cell in found if cell)
        rows.append(SummaryRow(turn, stage, policy, found, wheel.get(policy)))
    unreliable = tuple(
        f"iteration {e.turn}, {e.stage}, suite {e.suite}: {e.invalid:,} of {e.trajectories:,}"
        for e in cells.values()
        if e.invalid > LARGEST_INVALID_SHARE * e.trajectories
    )
    order = list(wheel.values())
    return Summary(headline(order), _detail(order), tuple(harm(order)), suites, tuple(rows), unreliable)


def _judged(cell: Evaluation | None, data: ReportData) -> Judged | None:
    if cell is None or cell.success is None or cell.low is None or cell.high is None:
        return None
    solved = data.verdicts.get((cell.policy, cell.suite), {})
    return Judged(cell.policy, cell.turn, cell.stage, cell.suite, cell.success, cell.low, cell.high, cell.judged, solved)


def _detail(wheel: Sequence[Standing]) -> str:
    """Describe the source of the last figure and its comparison."""
    if not wheel:
        return "Figures appear here after the first evaluation of a stage."
    last = wheel[-1].judged
    interval = f"95{HARD_SPACE}% interval {percent(last.low)} to {percent(last.high)}"
    where = f"{last.attempts:,} judged attempts at suite {last.suite} after iteration {last.turn}, {interval}."
    return f"{where} {comparison(wheel)}".strip()


def side_by_side(data: ReportData) -> list[Row]:
    """Rows of iterations: last success on each suite, the gate's decision, horizons, and seconds per stage."""
    last = {(e.turn, e.suite): e for e in wheel_evaluations(data) if e.hops is None}  # ordered by stage, so the last one wins
    gate = {decision["wheel_turn"]: "promoted" if decision["promoted"] else "kept back" for decision in data.decisions}
    rounds = {run.wheel_turn: rounds_of(run) for run in data.runs if run.stage == "rl" and not is_compared(run)}
    suites = sorted({suite for _, suite in last})
    return [
        {
            **iteration,
            "name": f"iteration {turn}",
            "success": {suite: last.get((turn, suite)) for suite in suites},
            "gate": gate.get(turn, "–"),
            "rounds": rounds.get(turn, ()),
            "seconds": {part["stage"]: part["seconds"] for part in iteration["ran"] or ()},
        }
        for iteration in data.iterations
        if (turn := iteration["wheel_turn"])
    ]


def curricula(data: ReportData) -> list[tuple[str, Evaluation]]:
    names = {run.figures.get("policy"): variant_name(run) for run in compared_runs(data)}
    return [
        (names[evaluation.policy], evaluation) for evaluation in data.evaluations if evaluation.hops is None and evaluation.policy in names
    ]


def duration(seconds: float | None) -> str:
    """Format a duration in a suitable unit; a dash if unknown."""
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
