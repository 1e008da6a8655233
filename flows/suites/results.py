"""Results of a suite: a policy's report, failures that state an accepted answer, and the seven traits of a good evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from eval.graders.answers import sub_match
from eval.graders.choice import Verifiers
from eval.graders.verifiers import asks_for_set
from eval.statistics import Interval
from eval.suites.figures import AXES, Comparison, Cost, Coverage, Figure, Trial, by, compare, cost, coverage, headline, ladder
from eval.suites.tasks import SUITE
from eval.suites.validation import Trait, grading, label_quality, meaning, not_saturated, one_command, one_headline, size
from flows.plan import evaluation_id, reopen
from flows.results import forget
from flows.screen import Screen
from flows.suites.config import SuiteConfig, corpus_of
from flows.suites.tasks import SuiteTasks, digest_of
from flows.verification import validate_tasks
from warehouse import Lake, Task
from warehouse.errors import RequestError
from warehouse.replies import split_reasoning

_FAILURES = """
SELECT t.task_key, t.answer FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
WHERE t.stage = 'eval' AND t.policy = ? AND t.suite = ? AND o.outcome = 'failure'
"""


@dataclass(frozen=True, slots=True)
class StatedAnswers:
    """Number of failures, and of those that state an accepted answer as whole words. Changes no verdict."""

    failures: int
    stating: int

    @property
    def advice(self) -> str | None:
        """Remedy, if any failure states an accepted answer."""
        if not self.stating:
            return None
        return (
            f"{self.stating} of {self.failures} failures contain an accepted answer among other words: ask for the answer alone (in the "
            "question, or in the system prompt by rollout.dialects.NAME.system), or let a model judge (suite verifier = judge, "
            "evaluation.judge)"
        )

    def record(self) -> dict[str, int | str | None]:
        return {"failures": self.failures, "stating": self.stating, "advice": self.advice}


def read_stated_answers(lake: Lake, policy: str, suite: str) -> StatedAnswers:
    rows = lake.query(_FAILURES, [policy, suite]).to_pylist()
    keys = list({row["task_key"] for row in rows if row["answer"]})
    tasks = {task.key: task for task in lake.read(Task, "key IN (SELECT unnest(?))", [keys])} if keys else {}
    return StatedAnswers(len(rows), sum(row["task_key"] in tasks and states(tasks[row["task_key"]], row["answer"] or "") for row in rows))


def states(task: Task, answer: str) -> bool:
    """Return whether an answer, without its reasoning, states an accepted answer, or all of them if the task asks for a set."""
    said = split_reasoning(answer)[1]
    if asks_for_set(task):
        return bool(task.answers) and all(sub_match(said, [gold]) for gold in task.answers)
    return sub_match(said, task.answers)


_TRIALS = """
SELECT t.task_key, o.outcome, t.answer, t.sample, coalesce(k.hops, 0) AS hops, t.horizon, t.n_turns AS turns, t.n_calls AS calls,
    t.prompt_tokens, t.action_tokens, t.observation_tokens, t.seconds, k.provenance
FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id LEFT JOIN tasks k ON k.key = t.task_key
WHERE t.stage = 'eval' AND t.policy = ? AND t.suite = ? ORDER BY t.task_key, t.sample, t.id
"""
_COUNTS = ("sample", "hops", "horizon", "turns", "calls", "prompt_tokens", "action_tokens", "observation_tokens")


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """Figures of a policy on a suite. An `objection` says why they are not a valid result.

    `not_compared` says why there is no comparison with `against`; `untaken_calls` counts replies that looked like calls but were not
    executed.
    """

    suite: str
    policy: str
    meaning: str
    documents: str
    coverage: Coverage
    objection: str | None
    headline: Figure
    ladder: list[Figure]
    groups: dict[str, dict[int, Figure]]
    cost: Cost | None
    against: str | None
    comparison: Comparison | None
    not_compared: str | None
    stated_answers: StatedAnswers
    untaken_calls: int

    def record(self) -> dict[str, Any]:
        """Convert to a JSON-serializable dictionary, without figures if there is an objection."""
        record = asdict(self) | {"coverage": asdict(self.coverage) | {"missing": self.coverage.missing, "wanted": self.coverage.wanted}}
        record["stated_answers"] = self.stated_answers.record()
        if self.comparison is not None:
            record["comparison"] |= {"real": self.comparison.real, "statement": self.comparison.statement}
        if self.objection is not None:
            record |= dict.fromkeys(("headline", "ladder", "groups", "comparison"))
        return record


def read_trials(lake: Lake, policy: str, suite: str, verifiers: Verifiers) -> list[Trial]:
    """Read a policy's attempts at a suite, with answers parsed by `verifiers`."""
    return [_trial(row, verifiers) for row in lake.query(_TRIALS, [policy, suite]).to_pylist()]


def policies_on(lake: Lake, suite: str) -> list[str]:
    sql = "SELECT DISTINCT policy FROM trajectories WHERE stage = 'eval' AND suite = ? ORDER BY policy"
    return [row["policy"] for row in lake.query(sql, [suite]).to_pylist()]


def read_coverage(lake: Lake, suite: SuiteConfig, trials: list[Trial]) -> Coverage:
    """Compute the coverage of the suite's tasks by `trials`."""
    (row,) = lake.query("SELECT count(*) AS tasks FROM tasks WHERE split = ?", [suite.name]).to_pylist()
    return coverage(trials, row["tasks"], suite.samples)


def read_report(lake: Lake, suite: SuiteConfig, policy: str, verifiers: Verifiers, against: str | None = None) -> SuiteReport:
    """Report a policy's figures on a suite, compared with those of the policy `against`."""
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
        stated_answers=read_stated_answers(lake, policy, suite.name),
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
    """Raise RequestError if a suite of this name was run with other settings, since their figures must not mix."""
    wanted = suite.model_dump(mode="json")
    attempted = {evaluation_id(policy, suite.name) for policy in policies_on(lake, suite.name)}
    for run in lake.runs("stage = 'eval'") if attempted else ():
        stored = _filled(run.config.get(SUITE))
        if run.id in attempted and isinstance(stored, Mapping) and stored != wanted:
            differing = ", ".join(sorted(key for key in {*stored, *wanted} if stored.get(key) != wanted.get(key)))
            raise RequestError(
                f"{lake.place.home} has run a suite {suite.name} with other settings ({differing} differ): "
                f"rename this one with --set name=NAME."
            )


def _filled(stored: Any) -> Any:
    """Fill stored settings with defaults for newer keys; return invalid settings unchanged."""
    try:
        return SuiteConfig.model_validate(stored).model_dump(mode="json")
    except ValidationError:
        return stored


def forget_invalid(lake: Lake, policy: str, suite: str) -> int:
    """Remove a policy's invalid attempts at a suite, so that they are made again. Return their number.

    Each leaves a row in `failures`; earlier snapshots of the lake keep the attempts.
    """
    sql = "SELECT trajectory_id, error FROM outcomes WHERE stage = 'eval' AND policy = ? AND suite = ? AND outcome = 'invalid' ORDER BY 1"
    broken = {row["trajectory_id"]: row["error"] or "judged invalid" for row in lake.query(sql, [policy, suite]).to_pylist()}
    if not broken:
        return 0
    reopen(lake, evaluation_id(policy, suite))
    forget(lake, "eval", broken)
    return len(broken)


def print_report(report: SuiteReport) -> None:
    """Print headline, coverage, figures, cost and comparison; with an objection, only coverage and the objection."""
    console = Screen()
    console.print(f"[bold]{report.suite}[/bold], {escape(report.policy)}: {escape(report.meaning)}")
    console.print(f"documents searched: {escape(report.documents)}")
    covered = report.coverage
    console.print(
        f"{covered.tasks} tasks, {covered.wanted} attempts: {covered.judged} judged, {covered.invalid} invalid, {covered.missing} missing"
    )
    console.print(f"replies that looked like calls but were not read as calls: {report.untaken_calls}")
    if report.objection is not None:
        console.print(f"[bold]no result:[/bold] {report.objection}")
        return
    console.print(f"[bold]{report.headline.name} = {_percent(report.headline)}[/bold]")
    if report.stated_answers.advice is not None:
        console.print(report.stated_answers.advice)
    if len(report.ladder) > 1:
        console.print(_figures_table("figure", [(figure.name, figure) for figure in report.ladder]))
    for axis, figures in report.groups.items():
        console.print(_figures_table(axis, [(str(value), figure) for value, figure in figures.items()]))
    _print_cost(console, report)
    if report.against is not None:
        untried = f"not compared, since {report.not_compared}: evaluate it too with --policy {escape(report.against)}"
        compared = untried if report.comparison is None else report.comparison.statement
        console.print(f"against {escape(report.against)}: {compared}")


def _print_cost(console: Screen, report: SuiteReport) -> None:
    spent = report.cost
    if spent is None:
        return
    seconds = "" if spent.seconds is None else f", {spent.seconds:.2f} seconds"
    console.print(
        f"per attempt: {spent.turns:.1f} turns, {spent.calls:.1f} calls, {spent.prompt_tokens:.0f} prompt tokens, "
        f"{spent.action_tokens:.0f} action tokens, {spent.observation_tokens:.0f} observation tokens{seconds}"
    )


def _figures_table(first: str, rows: Sequence[tuple[str, Figure]]) -> Table:
    table = Table(first, "tasks", "% (95 % interval)")
    for name, figure in rows:
        table.add_row(name, str(figure.tasks), _percent(figure))
    return table


def _percent(figure: Figure) -> str:
    value: Interval | None = figure.estimate
    return "–" if value is None else f"{100 * value.value:.1f} ({100 * value.low:.1f}–{100 * value.high:.1f})"


def check_suite(lake: Lake, suite: SuiteConfig, drawn: SuiteTasks, verifiers: Verifiers, command: str) -> list[Trait]:
    """Assess the seven traits of a good evaluation. `command` evaluates a policy on the suite."""
    proven = validate_tasks(drawn.tasks, verifiers)
    best, figure, objection = _best(lake, suite, verifiers)
    ran = bool(policies_on(lake, suite.name))
    stored = digest_of(lake.tasks(split=suite.name)) if ran else None
    return [
        size(len(drawn.tasks)),
        label_quality(proven),
        one_headline(suite.headline, figure, objection),
        one_command(command, drawn.digest, stored),
        meaning(suite.meaning),
        grading(proven),
        not_saturated(best, figure),
    ]


def print_traits(suite: str, traits: Sequence[Trait]) -> None:
    table = Table("trait", "", "why", title=f"{suite}: the traits of a good evaluation", title_justify="left")
    for trait in traits:
        table.add_row(trait.name, trait.state.value, escape(trait.reason))
    Screen().print(table)


def _best(lake: Lake, suite: SuiteConfig, verifiers: Verifiers) -> tuple[str | None, Figure | None, str | None]:
    """Return the policy with the best headline and its figure. Without any valid result, return a figure and its objection."""
    results: list[tuple[float, str, Figure]] = []
    without: tuple[str | None, Figure | None, str | None] = (None, None, None)
    for policy in policies_on(lake, suite.name):
        trials = read_trials(lake, policy, suite.name, verifiers)
        objection, figure = read_coverage(lake, suite, trials).objection, headline(trials, suite.headline)
        if objection is None and figure.estimate is not None:
            results.append((figure.estimate.value, policy, figure))
        else:
            without = (None, figure, objection)
    if not results:
        return without
    _, policy, figure = max(results)
    return policy, figure, None
