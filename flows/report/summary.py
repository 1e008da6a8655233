"""The headline and table that open the report, and monitored metrics against their limits, without policies of compared curricula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eval.suites.figures import LARGEST_INVALID_SHARE
from flows.report.data import Alert, Curve, Evaluation, ReportData, RunFacts, stage_order, wheel_evaluations
from flows.results import HARD_SPACE, Judged, Standing, comparison, harm, headline, percent, standings
from flows.variants import Variant
from rl.learner.config import MetricLimit


class SummaryRow(NamedTuple):
    """One stage of one iteration: its evaluation on each suite (None where there was none), and its standing on the main one."""

    turn: int
    stage: str
    policy: str
    cells: tuple[Evaluation | None, ...]
    standing: Standing | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The table of success by stage and the sentences above it: a headline, its detail, stages that did harm, unreliable evaluations."""

    headline: str
    detail: str
    harm: tuple[str, ...]
    suites: tuple[str, ...]
    rows: tuple[SummaryRow, ...]
    unreliable: tuple[str, ...]


def summarize(data: ReportData) -> Summary:
    """Success by iteration and stage, with its headline. The main suite is the one with the most attempts."""
    evaluations = [evaluation for evaluation in wheel_evaluations(data) if evaluation.hops is None]
    attempts: dict[str, int] = {}
    for evaluation in evaluations:
        attempts[evaluation.suite] = attempts.get(evaluation.suite, 0) + evaluation.tasks
    suites = tuple(sorted(attempts, key=lambda suite: (-attempts[suite], suite)))
    table = _table(evaluations, suites, data)
    wheel = [row.standing for row in table if row.standing is not None]
    unreliable = [
        f"turn {e.turn}, {e.stage}, suite {e.suite}: {e.invalid:,} of {e.trajectories:,}"
        for e in evaluations
        if e.invalid > LARGEST_INVALID_SHARE * e.trajectories
    ]
    return Summary(headline(wheel), _detail(wheel), tuple(harm(wheel)), suites, table, tuple(unreliable))


def _table(evaluations: Sequence[Evaluation], suites: Sequence[str], data: ReportData) -> tuple[SummaryRow, ...]:
    cells = {(evaluation.turn, evaluation.stage, evaluation.suite): evaluation for evaluation in evaluations}
    places = sorted({(turn, stage) for turn, stage, _ in cells}, key=lambda place: (place[0], stage_order(place[1])))
    on_main = [judged for place in places if (judged := _judged(cells.get((*place, suites[0])), data)) is not None]
    standing = {each.judged.policy: each for each in standings(on_main)}
    table: list[SummaryRow] = []
    for turn, stage in places:
        found = tuple(cells.get((turn, stage, suite)) for suite in suites)
        policy = next(evaluation.policy for evaluation in found if evaluation is not None)
        table.append(SummaryRow(turn, stage, policy, found, standing.get(policy)))
    return tuple(table)


def _judged(cell: Evaluation | None, data: ReportData) -> Judged | None:
    if cell is None or cell.success is None or cell.low is None or cell.high is None:
        return None
    solved = data.verdicts.get((cell.policy, cell.suite), {})
    return Judged(cell.policy, cell.turn, cell.stage, cell.suite, cell.success, cell.low, cell.high, cell.judged, solved)


def _detail(wheel: Sequence[Standing]) -> str:
    """Where the last figure is from, and what it is compared with."""
    if not wheel:
        return "Figures appear here after the first evaluation of a stage."
    last = wheel[-1].judged
    interval = f"95{HARD_SPACE}% interval {percent(last.low)} to {percent(last.high)}"
    where = f"{last.attempts:,} judged attempts at suite {last.suite} after turn {last.turn}, {interval}."
    return f"{where} {comparison(wheel)}".strip()


@dataclass(frozen=True, slots=True)
class MonitoredMetric:
    """One limit of one run: the last and the worst value of its metric, and the alerts."""

    run: RunFacts
    limit: MetricLimit
    last: float
    worst: float
    alerts: tuple[Alert, ...]


def monitored_metrics(data: ReportData) -> tuple[MonitoredMetric, ...]:
    """The limits of the wheel's own RL runs whose metric was recorded, by run and limit."""
    curves = {(curve.run.id, curve.name): curve for curve in data.curves}
    return tuple(
        _metric(run, limit, curves[run.id, limit.sign], data.alerts)
        for run in data.runs
        if run.stage == "rl" and run.variant not in list(Variant)
        for limit in run.limits
        if (run.id, limit.sign) in curves
    )


def limit_words(limit: MetricLimit) -> str:
    """A limit as one sentence."""
    bounds = (("at least", limit.below), ("at most", limit.above), ("no fall by more than", limit.falls))
    demanded = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None) or "a finite number"
    return f"Limit: {demanded}, {limit.then} after {limit.steps} step{'' if limit.steps == 1 else 's'}."


def _metric(run: RunFacts, limit: MetricLimit, curve: Curve, alerts: Sequence[Alert]) -> MonitoredMetric:
    values = curve.values
    if limit.below is not None or limit.falls is not None:
        worst = min(values)
    else:
        worst = max(values) if limit.above is not None else max(values, key=math.fabs)
    own = tuple(alert for alert in alerts if (alert.run, alert.metric) == (run.id, limit.sign))
    return MonitoredMetric(run, limit, values[-1], worst, own)
