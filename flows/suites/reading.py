"""What a lake says of a policy on a suite: attempts, coverage, figures, and the comparison with another policy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from eval.answers import key_of
from eval.comparison import Comparison, compare
from eval.suite_figures import AXES, Cost, Figure, by, cost, headline, ladder
from eval.trials import Coverage, Trial, coverage
from flows.suites.config import SuiteConfig
from warehouse import Lake

_TRIALS = """
SELECT t.task_key, o.outcome, t.answer, t.sample, coalesce(k.hops, 0) AS hops, t.horizon, t.n_turns AS turns, t.n_calls AS calls,
    t.prompt_tokens, t.action_tokens, t.observation_tokens, t.seconds
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
    coverage: Coverage
    objection: str | None
    headline: Figure
    ladder: list[Figure]
    groups: dict[str, dict[int, Figure]]
    cost: Cost | None
    against: str | None
    comparison: Comparison | None

    def record(self) -> dict[str, Any]:
        """The same as JSON would give it back, without figures where there is no result."""
        told = asdict(self) | {"coverage": asdict(self.coverage) | {"missing": self.coverage.missing, "wanted": self.coverage.wanted}}
        if self.comparison is not None:
            told["comparison"] |= {"real": self.comparison.real, "statement": self.comparison.statement}
        if self.objection is not None:
            told |= dict.fromkeys(("headline", "ladder", "groups", "comparison"))
        return told


def read_trials(lake: Lake, policy: str, suite: str) -> list[Trial]:
    """The attempts of a policy at the tasks of a suite."""
    return [_trial(row) for row in lake.query(_TRIALS, [policy, suite]).to_pylist()]


def policies_on(lake: Lake, suite: str) -> list[str]:
    """The policies that have attempts on a suite."""
    sql = "SELECT DISTINCT policy FROM trajectories WHERE stage = 'eval' AND suite = ? ORDER BY policy"
    return [row["policy"] for row in lake.query(sql, [suite]).to_pylist()]


def read_coverage(lake: Lake, suite: SuiteConfig, trials: list[Trial]) -> Coverage:
    """What of the suite's tasks in the lake was attempted."""
    (row,) = lake.query("SELECT count(*) AS tasks FROM tasks WHERE split = ?", [suite.name]).to_pylist()
    return coverage(trials, row["tasks"], suite.samples)


def read_report(lake: Lake, suite: SuiteConfig, policy: str, against: str | None = None) -> SuiteReport:
    """All figures of a policy on a suite, beside those of another one where it is named."""
    trials = read_trials(lake, policy, suite.name)
    covered = read_coverage(lake, suite, trials)
    return SuiteReport(
        suite=suite.name,
        policy=policy,
        meaning=suite.meaning,
        coverage=covered,
        objection=covered.objection,
        headline=headline(trials, suite.headline),
        ladder=ladder(trials, suite.samples),
        groups={axis: by(trials, axis) for axis in AXES},
        cost=cost(trials),
        against=against,
        comparison=compare(read_trials(lake, against, suite.name), trials) if against else None,
    )


def _trial(row: dict[str, Any]) -> Trial:
    verdicts = {"success": True, "failure": False}
    answer = None if row["answer"] is None else key_of(row["answer"])
    rest = {name: row[name] or 0 for name in _COUNTS}
    return Trial(row["task_key"], verdicts.get(row["outcome"]), answer if answer and answer[0] else None, seconds=row["seconds"], **rest)
