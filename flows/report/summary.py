"""What the figures come to: the headline and the table that open the report, and each monitored metric against its limit.

Comparison policies of other curricula are left out here; they have a section of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eval.statistics import PairedTest
from eval.suites.figures import LARGEST_INVALID_SHARE
from flows.report.data import Alert, Curve, Evaluation, ReportData, RunFacts, stage_order
from flows.results import Solved, paired, probability
from flows.variants import Variant
from rl.training.config import MetricLimit

STAGE_NAMES = {"init": "no training", "cpt": "pre-training", "sft": "cold start", "rl": "reinforcement learning"}
"""What each stage is called in sentences."""
_HARD_SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class Change:
    """Success less the success of the stage before, in points, with the exact paired p-value (None without common tasks)."""

    points: float
    test: PairedTest | None


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One stage of one turn: its evaluation on each suite (None where there was none) and the change on the main suite."""

    turn: int
    stage: str
    policy: str
    cells: tuple[Evaluation | None, ...]
    change: Change | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The table, and the sentence that stands above it."""

    headline: str
    detail: str
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
    headline, detail = _headline(table)
    unreliable = [
        _unreliable(evaluation) for evaluation in evaluations if evaluation.invalid > LARGEST_INVALID_SHARE * evaluation.trajectories
    ]
    return Summary(headline, detail, suites, table, tuple(unreliable))


def signed(points: float) -> str:
    """A difference with its sign, which is never a hyphen."""
    return f"{points:+.1f}".replace("-", "\N{MINUS SIGN}")


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal, or a dash."""
    return "–" if share is None else f"{100 * share:.1f}{_HARD_SPACE}%"


def unbroken(text: str) -> str:
    """Text that no line ends within."""
    return text.replace(" ", _HARD_SPACE)


def _suites(evaluations: Sequence[Evaluation]) -> tuple[str, ...]:
    """Suites in use, the one with the most attempts first: it is the main one."""
    attempts: dict[str, int] = {}
    for evaluation in evaluations:
        attempts[evaluation.suite] = attempts.get(evaluation.suite, 0) + evaluation.tasks
    return tuple(sorted(attempts, key=lambda suite: (-attempts[suite], suite)))


def _table(evaluations: Sequence[Evaluation], suites: Sequence[str], data: ReportData) -> tuple[SummaryRow, ...]:
    cells = {(evaluation.turn, evaluation.stage, evaluation.suite): evaluation for evaluation in evaluations}
    places = sorted({(turn, stage) for turn, stage, _ in cells}, key=lambda place: (place[0], stage_order(place[1])))
    table: list[SummaryRow] = []
    for turn, stage in places:
        found = tuple(cells.get((turn, stage, suite)) for suite in suites)
        policy = next(evaluation.policy for evaluation in found if evaluation is not None)
        table.append(SummaryRow(turn, stage, policy, found, _change(table[-1] if table else None, found, data)))
    return tuple(table)


def _change(before: SummaryRow | None, cells: Sequence[Evaluation | None], data: ReportData) -> Change | None:
    earlier, later = (before.cells[0] if before else None), cells[0]
    if earlier is None or later is None or earlier.success is None or later.success is None:
        return None
    return Change(100 * (later.success - earlier.success), paired(_solved(data, earlier), _solved(data, later)))


def _solved(data: ReportData, evaluation: Evaluation) -> Solved:
    return data.verdicts.get((evaluation.policy, evaluation.suite), {})


def _headline(table: Sequence[SummaryRow]) -> tuple[str, str]:
    """The last stage that was evaluated, against the one before it."""
    judged = [row for row in table if row.cells[0] is not None and row.cells[0].success is not None]
    if not judged:
        return "Nothing has been evaluated yet", "Figures appear here after the first evaluation of a stage."
    last = judged[-1]
    cell = last.cells[0]
    assert cell is not None
    headline = f"{percent(cell.success)} of unseen tasks solved after {STAGE_NAMES.get(last.stage, last.stage)}"
    where = f"Turn {last.turn}, {cell.judged:,} judged attempts at suite {cell.suite}"
    return headline, f"{where}, 95{_HARD_SPACE}% interval {_interval(cell)}. {_change_sentence(last)}".strip()


def _interval(cell: Evaluation) -> str:
    return f"{percent(cell.low)} to {percent(cell.high)}"


def _change_sentence(row: SummaryRow) -> str:
    if row.change is None:
        return ""
    sign = "more" if row.change.points >= 0 else "less"
    words = f"{abs(row.change.points):.1f} points {sign} than the stage before"
    test = row.change.test
    return f"{words}." if test is None else f"{words} ({unbroken(probability(test.p_value))}, McNemar on {test.tasks:,} common tasks)."


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
