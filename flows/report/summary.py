"""What the figures come to: the headline and the table that open the report, and each monitored metric against its limit.

Comparison policies of other curricula are left out here; they have a section of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eval.suites.figures import LARGEST_INVALID_SHARE
from flows.report.data import Alert, Curve, Evaluation, ReportData, RunFacts, stage_order
from flows.results import HARD_SPACE, Judged, Standing, comparison, harm, headline, percent, standings
from flows.variants import Variant
from rl.learner.config import MetricLimit


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One stage of one turn: its evaluation on each suite (None where there was none), and how it stands on the main one."""

    turn: int
    stage: str
    policy: str
    cells: tuple[Evaluation | None, ...]
    standing: Standing | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The table, and the sentence that stands above it."""

    headline: str
    detail: str
    harm: tuple[str, ...]
    """A sentence for each stage that did harm."""
    suites: tuple[str, ...]
    rows: tuple[SummaryRow, ...]
    unreliable: tuple[str, ...]
    """Evaluations with more than 2 % invalid trajectories, in words."""


def wheel_evaluations(data: ReportData) -> tuple[Evaluation, ...]:
    """The evaluations of the wheel's own policies: one policy a stage and turn, the promoted one where there are several."""
    compared = {run.policy for run in data.runs if run.variant in list(Variant)}
    promoted = {policy.id for policy in data.lineage.policies if policy.promoted}
    own = [evaluation for evaluation in data.evaluations if evaluation.policy not in compared]
    chosen: dict[tuple[int, str], str] = {}
    for evaluation in own:
        place = (evaluation.turn, evaluation.stage)
        if place not in chosen or (evaluation.policy in promoted and chosen[place] not in promoted):
            chosen[place] = evaluation.policy
    return tuple(evaluation for evaluation in own if chosen[evaluation.turn, evaluation.stage] == evaluation.policy)


def summarize(data: ReportData) -> Summary:
    """The table of success by turn and stage, with its headline."""
    evaluations = [evaluation for evaluation in wheel_evaluations(data) if evaluation.hops is None]
    suites = _suites(evaluations)
    table = _table(evaluations, suites, data)
    wheel = [row.standing for row in table if row.standing is not None]
    unreliable = [
        _unreliable(evaluation) for evaluation in evaluations if evaluation.invalid > LARGEST_INVALID_SHARE * evaluation.trajectories
    ]
    return Summary(headline(wheel), _detail(wheel), tuple(harm(wheel)), suites, table, tuple(unreliable))


def unbroken(text: str) -> str:
    """Text that no line ends within."""
    return text.replace(" ", HARD_SPACE)


def _suites(evaluations: Sequence[Evaluation]) -> tuple[str, ...]:
    """Suites in use, the one with the most attempts first: it is the main one."""
    attempts: dict[str, int] = {}
    for evaluation in evaluations:
        attempts[evaluation.suite] = attempts.get(evaluation.suite, 0) + evaluation.tasks
    return tuple(sorted(attempts, key=lambda suite: (-attempts[suite], suite)))


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


def _unreliable(evaluation: Evaluation) -> str:
    return f"turn {evaluation.turn}, {evaluation.stage}, suite {evaluation.suite}: {evaluation.invalid:,} of {evaluation.trajectories:,}"


@dataclass(frozen=True, slots=True)
class MonitoredMetric:
    """One limit of one run: the last value of its metric, the one that came nearest to breaking it or broke it most, and the alerts."""

    run: RunFacts
    limit: MetricLimit
    last: float
    worst: float
    alerts: tuple[Alert, ...]


def monitored_metrics(data: ReportData) -> tuple[MonitoredMetric, ...]:
    """Every limit of the wheel's own RL runs whose metric was recorded, in the order of runs and limits."""
    curves = {(curve.run.id, curve.name): curve for curve in data.curves}
    return tuple(
        _metric(run, limit, curves[run.id, limit.sign], data.alerts)
        for run in data.runs
        if run.stage == "rl" and run.variant not in list(Variant)
        for limit in run.limits
        if (run.id, limit.sign) in curves
    )


def limit_words(limit: MetricLimit) -> str:
    """A limit as one sentence: its bounds, and what breaking it for how many steps in a row does."""
    bounds = (("at least", limit.below), ("at most", limit.above), ("no fall by more than", limit.falls))
    demanded = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None) or "a finite number"
    return f"Limit: {demanded}, {limit.then} after {limit.steps} step{'' if limit.steps == 1 else 's'}."


def _metric(run: RunFacts, limit: MetricLimit, curve: Curve, alerts: Sequence[Alert]) -> MonitoredMetric:
    own = tuple(alert for alert in alerts if (alert.run, alert.metric) == (run.id, limit.sign))
    return MonitoredMetric(run, limit, curve.values[-1], _worst(limit, curve.values), own)


def _worst(limit: MetricLimit, values: Sequence[float]) -> float:
    """The lowest value where the limit is a floor or a fall, else the one that is furthest from zero."""
    if limit.below is not None or limit.falls is not None:
        return min(values)
    return max(values) if limit.above is not None else max(values, key=lambda value: math.fabs(value))
