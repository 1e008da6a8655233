"""What a lake holds of a policy on a suite: attempts, coverage, figures and the comparison with another policy, read and printed.

A suite has one definition in a home, for figures of two under one name would mix. Attempts that a fault made invalid can be taken out, so
that they are made again: without that, a suite with many has no result for good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from eval.graders.choice import Verifiers
from eval.statistics import Interval
from eval.suites.figures import AXES, Comparison, Cost, Coverage, Figure, Trial, by, compare, cost, coverage, headline, ladder
from eval.suites.tasks import SUITE
from flows.plan import evaluation_id, reopen
from flows.results import forget
from flows.screen import Screen
from flows.suites.config import SuiteConfig, corpus_of
from warehouse import Lake, Task
from warehouse.errors import RequestError

_TRIALS = """
SELECT t.task_key, o.outcome, t.answer, t.sample, coalesce(k.hops, 0) AS hops, t.horizon, t.n_turns AS turns, t.n_calls AS calls,
    t.prompt_tokens, t.action_tokens, t.observation_tokens, t.seconds, k.provenance
FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id LEFT JOIN tasks k ON k.key = t.task_key
WHERE t.stage = 'eval' AND t.policy = ? AND t.suite = ? ORDER BY t.task_key, t.sample, t.id
"""
_COUNTS = ("sample", "hops", "horizon", "turns", "calls", "prompt_tokens", "action_tokens", "observation_tokens")


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """The figures of a policy on a suite; where `objection` says why, they are no result."""

    suite: str
    policy: str
    meaning: str
    documents: str
    """Whose documents were searched."""
    coverage: Coverage
    objection: str | None
    headline: Figure
    ladder: list[Figure]
    groups: dict[str, dict[int, Figure]]
    cost: Cost | None
    against: str | None
    comparison: Comparison | None
    not_compared: str | None
    """Why there is no comparison with `against`."""
    untaken_calls: int
    """Replies that looked like calls and were not taken as one: rows of the view `untaken_calls`."""

    def record(self) -> dict[str, Any]:
        """The same as JSON would give it back, without figures where there is no result."""
        record = asdict(self) | {"coverage": asdict(self.coverage) | {"missing": self.coverage.missing, "wanted": self.coverage.wanted}}
        if self.comparison is not None:
            record["comparison"] |= {"real": self.comparison.real, "statement": self.comparison.statement}
        if self.objection is not None:
            record |= dict.fromkeys(("headline", "ladder", "groups", "comparison"))
        return record


def read_trials(lake: Lake, policy: str, suite: str, verifiers: Verifiers) -> list[Trial]:
    """The attempts of a policy at the tasks of a suite, their answers as the `verifiers` that judge these read them."""
    return [_trial(row, verifiers) for row in lake.query(_TRIALS, [policy, suite]).to_pylist()]


def policies_on(lake: Lake, suite: str) -> list[str]:
    """The policies that have attempts on a suite."""
    sql = "SELECT DISTINCT policy FROM trajectories WHERE stage = 'eval' AND suite = ? ORDER BY policy"
    return [row["policy"] for row in lake.query(sql, [suite]).to_pylist()]


def read_coverage(lake: Lake, suite: SuiteConfig, trials: list[Trial]) -> Coverage:
    """What of the suite's tasks in the lake was attempted."""
    (row,) = lake.query("SELECT count(*) AS tasks FROM tasks WHERE split = ?", [suite.name]).to_pylist()
    return coverage(trials, row["tasks"], suite.samples)


def read_report(lake: Lake, suite: SuiteConfig, policy: str, verifiers: Verifiers, against: str | None = None) -> SuiteReport:
    """All figures of a policy on a suite that `verifiers` judge, beside those of another one where it is named."""
    trials = read_trials(lake, policy, suite.name, verifiers)
    others = read_trials(lake, against, suite.name, verifiers) if against else []
    covered, of_other = (read_coverage(lake, suite, each) for each in (trials, others))
    not_compared = of_other.objection if against else None
    return SuiteReport(
        suite=suite.name,
        policy=policy,
        meaning=suite.meaning,
        documents=corpus_of(suite),
        coverage=covered,
        objection=covered.objection,
        headline=headline(trials, suite.headline),
        ladder=ladder(trials, suite.samples),
        groups={axis: by(trials, axis) for axis in AXES},
        cost=cost(trials),
        against=against,
        comparison=compare(others, trials) if against and not not_compared else None,
        not_compared=not_compared,
        untaken_calls=_untaken_calls(lake, policy, suite.name),
    )


def _untaken_calls(lake: Lake, policy: str, suite: str) -> int:
    sql = "SELECT count(*) AS replies FROM untaken_calls WHERE stage = 'eval' AND policy = ? AND suite = ?"
    (row,) = lake.query(sql, [policy, suite]).to_pylist()
    return int(row["replies"])


def _trial(row: dict[str, Any], verifiers: Verifiers) -> Trial:
    verdicts = {"success": True, "failure": False}
    task = Task(row["task_key"], "", "", (), provenance=json.loads(row["provenance"] or "{}"))
    answer = verifiers.read(task, row["answer"])
    rest = {name: row[name] or 0 for name in _COUNTS}
    return Trial(row["task_key"], verdicts.get(row["outcome"]), answer, seconds=row["seconds"], **rest)


def check_same(lake: Lake, suite: SuiteConfig) -> None:
    """Raises RequestError where a policy has attempts at a suite of this name with other settings."""
    wanted = suite.model_dump(mode="json")
    attempted = {evaluation_id(policy, suite.name) for policy in policies_on(lake, suite.name)}
    for run in lake.runs("stage = 'eval'") if attempted else ():
        stored = _filled(run.config.get(SUITE))
        if run.id in attempted and isinstance(stored, Mapping) and stored != wanted:
            differing = ", ".join(sorted(key for key in {*stored, *wanted} if stored.get(key) != wanted.get(key)))
            raise RequestError(
                f"{lake.place.home} has run a suite {suite.name} with other settings ({differing} differ): "
                f"give this one another name with --set name=NAME."
            )


def _filled(stored: Any) -> Any:
    """The stored settings of a suite, those that came later at their defaults; as they are where they are none any more."""
    try:
        return SuiteConfig.model_validate(stored).model_dump(mode="json")
    except ValidationError:
        return stored


def forget_invalid(lake: Lake, policy: str, suite: str) -> int:
    """Take the invalid attempts of a policy at a suite out of the present, and return how many there were.

    Each leaves a row in `failures` with what had broken it; the attempts themselves stay in the lake's earlier snapshots.
    """
    sql = "SELECT trajectory_id, error FROM outcomes WHERE stage = 'eval' AND policy = ? AND suite = ? AND outcome = 'invalid' ORDER BY 1"
    broken = {row["trajectory_id"]: row["error"] or "judged invalid" for row in lake.query(sql, [policy, suite]).to_pylist()}
    if not broken:
        return 0
    reopen(lake, evaluation_id(policy, suite))
    forget(lake, "eval", broken)
    return len(broken)


def print_report(report: SuiteReport) -> None:
    """Headline, coverage, figures by k, hops, turns and horizon, cost, comparison; without a result, only why there is none."""
    console = Screen()
    console.print(f"[bold]{report.suite}[/bold], {escape(report.policy)}: {escape(report.meaning)}")
    console.print(f"documents searched: {escape(report.documents)}")
    covered = report.coverage
    console.print(
        f"{covered.tasks} tasks, {covered.wanted} attempts: {covered.judged} judged, {covered.invalid} invalid, {covered.missing} missing"
    )
    console.print(f"replies that looked like calls and were not taken: {report.untaken_calls}")
    if report.objection is not None:
        console.print(f"[bold]no result:[/bold] {report.objection}")
        return
    console.print(f"[bold]{report.headline.name} = {_percent(report.headline)}[/bold]")
    if len(report.ladder) > 1:
        console.print(_figures_table("figure", [(figure.name, figure) for figure in report.ladder]))
    for axis, figures in report.groups.items():
        console.print(_figures_table(axis, [(str(value), figure) for value, figure in figures.items()]))
    _print_cost(console, report)
    if report.against is not None:
        untried = f"not compared, for {report.not_compared}: evaluate it too, with --policy {escape(report.against)}"
        compared = untried if report.comparison is None else report.comparison.statement
        console.print(f"against {escape(report.against)}: {compared}")


def _print_cost(console: Screen, report: SuiteReport) -> None:
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
        table.add_row(name, str(figure.tasks), _percent(figure))
    return table


def _percent(figure: Figure) -> str:
    value: Interval | None = figure.estimate
    return "–" if value is None else f"{100 * value.value:.1f} ({100 * value.low:.1f}–{100 * value.high:.1f})"
