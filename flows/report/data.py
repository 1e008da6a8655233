"""Queries behind the report: evaluations, runs, curves, iterations, lineage, failures.

The report is a pure function of the lake and the policies' tokenizers: the same snapshot gives the same page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flows.plan import WHEEL_ROLLOUTS
from flows.results import STAGES, Solved, read_verdicts
from flows.variants import Variant, horizons
from rl.learner.config import MetricLimit
from warehouse import Lake, Run

Row = Mapping[str, Any]
"""A query row, by column."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Success of a policy on a suite at one number of hops, or all (None). Shares are in [0, 1], None without a verdict.

    `invalid` counts trajectories, of which a task may have several.
    """

    turn: int
    stage: str
    policy: str
    suite: str
    hops: int | None
    tasks: int
    trajectories: int
    invalid: int
    success: float | None
    low: float | None
    high: float | None

    @property
    def judged(self) -> int:
        return self.trajectories - self.invalid


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of a run over its steps."""

    run: Run
    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MonitoredMetric:
    """A metric limit of a run: the metric's last and worst value, and its alerts (rows of `_ALERTS`)."""

    run: Run
    limit: MetricLimit
    last: float
    worst: float
    alerts: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class ReportData:
    """Data of the report except questions, synthesis and trajectories. Rows have the columns of the queries below."""

    snapshot: int
    totals: Row
    evaluations: tuple[Evaluation, ...]
    runs: tuple[Run, ...]
    curves: tuple[Curve, ...]
    alerts: tuple[Row, ...]
    iterations: tuple[Row, ...]
    frontier: tuple[Row, ...]
    policies: tuple[Row, ...]
    """Policies, each after its parent."""
    decisions: tuple[Row, ...]
    failures: tuple[Row, ...]
    tools: tuple[Row, ...]
    collected: tuple[Row, ...]
    verdicts: dict[tuple[str, str], Solved]
    """Success rate over a task's judged attempts, by (policy, suite) and task key, for paired tests."""

    @property
    def champion(self) -> tuple[Row, ...]:
        """The policy promoted last, preceded by its ancestors; empty without one."""
        by_id = {policy["id"]: policy for policy in self.policies}
        promoted = [policy for policy in self.policies if policy["promoted"]]
        here = max(promoted, key=lambda policy: (policy["wheel_turn"], policy["depth"]), default=None)
        line = list[Row]()
        while here is not None:
            line.insert(0, here)
            here = by_id.get(here["parent"])
        return tuple(line)


def read_report_data(lake: Lake) -> ReportData:
    """Read the report's data, in a fixed order."""
    runs = tuple(sorted(lake.runs(), key=lambda run: (run.wheel_turn, run.started, run.id)))
    return ReportData(
        snapshot=lake.snapshot(),
        totals=_rows(lake, _TOTALS)[0],
        evaluations=tuple(Evaluation(**row) for row in _rows(lake, _EVALUATIONS)),
        runs=runs,
        curves=_curves(lake, {run.id: run for run in runs}),
        alerts=_rows(lake, _ALERTS),
        iterations=_rows(lake, _ITERATIONS),
        frontier=_rows(lake, _FRONTIER),
        policies=_rows(lake, _POLICIES),
        decisions=_rows(lake, _DECISIONS),
        failures=_rows(lake, _FAILURES),
        tools=_rows(lake, _TOOLS),
        collected=_rows(lake, _COLLECTED),
        verdicts=read_verdicts(lake),
    )


def stage_order(stage: str) -> int:
    """Position of a stage in an iteration; unknown stages come last."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def variant_of(run: Run) -> str:
    """Variant of a training run; `scaling` is the pipeline's own."""
    return str(run.config.get("variant") or "scaling")


def is_compared(run: Run) -> bool:
    """Whether a run's policy exists only for comparison with the pipeline's own."""
    return variant_of(run) in list(Variant)


def rounds_of(run: Run) -> tuple[int, ...]:
    return horizons(variant_of(run), run.config.get("rl", {}).get("horizon", {}).get("rounds", ()))


def own_curves(data: ReportData, stage: str) -> list[Curve]:
    """Curves of the pipeline's own runs of a stage, without variants."""
    return [curve for curve in data.curves if curve.run.stage == stage and not is_compared(curve.run)]


def wheel_evaluations(data: ReportData) -> tuple[Evaluation, ...]:
    """Evaluations of the pipeline's own policies: one policy per stage and iteration, the promoted one if there are several."""
    compared = {run.figures.get("policy") for run in data.runs if is_compared(run)}
    promoted = {policy["id"] for policy in data.policies if policy["promoted"]}
    own = [evaluation for evaluation in data.evaluations if evaluation.policy not in compared]
    chosen: dict[tuple[int, str], str] = {}
    for evaluation in own:
        place = (evaluation.turn, evaluation.stage)
        if place not in chosen or (evaluation.policy in promoted and chosen[place] not in promoted):
            chosen[place] = evaluation.policy
    return tuple(evaluation for evaluation in own if chosen[evaluation.turn, evaluation.stage] == evaluation.policy)


def monitored_metrics(data: ReportData) -> tuple[MonitoredMetric, ...]:
    """Limits of the pipeline's own RL runs whose metric was recorded, by run and limit."""
    curves = {(curve.run.id, curve.name): curve.values for curve in own_curves(data, "rl")}
    return tuple(
        _metric(run, limit, curves[run.id, limit.sign], data)
        for run in data.runs
        for limit in map(MetricLimit.model_validate, run.config.get("rl", {}).get("health", {}).get("limits", ()))
        if (run.id, limit.sign) in curves
    )


def _metric(run: Run, limit: MetricLimit, values: tuple[float, ...], data: ReportData) -> MonitoredMetric:
    if limit.below is not None or limit.falls is not None:
        worst = min(values)
    else:
        worst = max(values) if limit.above is not None else max(values, key=math.fabs)
    own = tuple(alert for alert in data.alerts if (alert["run"], alert["metric"]) == (run.id, limit.sign))
    return MonitoredMetric(run, limit, values[-1], worst, own)


_TOTALS = """
SELECT (SELECT count(*) FROM tasks) AS tasks, count(*) AS trajectories, coalesce(sum(t.n_turns), 0)::BIGINT AS turns,
    count(*) FILTER (o.outcome = 'invalid') AS invalid, (SELECT count(*) FROM examples) AS examples
FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
"""

_FAILURES = """
SELECT stage, kind, count(*) AS count, min(reason) AS reason FROM failures GROUP BY stage, kind ORDER BY count DESC, stage, kind
"""

_ALERTS = """
SELECT item->>'run' AS run, item->>'$.limit.sign' AS metric, (item->>'step')::INT AS step, (item->>'since')::INT AS since,
    coalesce(try_cast(item->>'value' AS DOUBLE), 'nan'::DOUBLE) AS value, reason
FROM failures WHERE starts_with(kind, 'sign_') ORDER BY 1, 2, 3
"""
"""Violated metric limits: the value at `step` (NaN if not finite), and the first of the consecutive steps."""

_COLLECTED = """
SELECT t.wheel_turn, t.stage, count(*) AS trajectories, count(*) FILTER (o.outcome = 'invalid') AS invalid
FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id GROUP BY ALL ORDER BY 1, 2
"""

_EVALUATIONS = """
SELECT turn, coalesce(stage, 'import') AS stage, policy, coalesce(suite, 'unnamed') AS suite, hops,
    tasks, trajectories, invalid, success, low, high FROM evaluations
ORDER BY turn, list_position(['init', 'cpt', 'sft', 'rl'], stage), policy, suite, hops NULLS FIRST
"""

_CURVES = """
WITH points AS (
    SELECT run_id, name, step, value FROM metrics
    UNION ALL
    SELECT t.policy, 'reward_part/' || p.name, t.step, avg(p.weight * p.value)
    FROM reward_parts p JOIN trajectories t ON t.id = p.trajectory_id
    WHERE t.stage = 'rl' AND t.step IS NOT NULL AND t.outcome <> 'invalid' AND p.value IS NOT NULL GROUP BY ALL
)
SELECT run_id, name, list(step ORDER BY step) AS steps, list(value ORDER BY step) AS points
FROM points WHERE isfinite(value) GROUP BY run_id, name ORDER BY run_id, name
"""
"""Metrics, and the mean of each reward part per RL step. An RL run has the id of its policy."""

_ITERATIONS = """
WITH numbers AS (SELECT DISTINCT wheel_turn FROM runs UNION SELECT DISTINCT wheel_turn FROM trajectories WHERE stage IN ('rl', 'eval')),
ran AS (
    SELECT wheel_turn, stage, sum(epoch(finished - started)) AS seconds FROM runs WHERE state = 'completed' GROUP BY ALL
), made AS (
    SELECT wheel_turn, count(*) AS examples FROM examples GROUP BY ALL
), rolled AS (
    SELECT t.wheel_turn, count(*) FILTER (t.stage = 'rl') AS sampled, count(*) FILTER (t.stage = 'eval') AS evaluated,
        count(*) FILTER (o.outcome = 'invalid') AS invalid, sum(t.action_tokens)::BIGINT AS action_tokens,
        sum(t.observation_tokens)::BIGINT AS observation_tokens
    FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id WHERE t.stage IN ('rl', 'eval') GROUP BY ALL
)
SELECT n.wheel_turn, (SELECT list({'stage': stage, 'seconds': seconds} ORDER BY stage) FROM ran WHERE ran.wheel_turn = n.wheel_turn) AS ran,
    coalesce(m.examples, 0) AS examples, coalesce(r.sampled, 0) AS sampled, coalesce(r.evaluated, 0) AS evaluated,
    coalesce(r.invalid, 0) AS invalid, coalesce(r.action_tokens, 0) AS action_tokens,
    coalesce(r.observation_tokens, 0) AS observation_tokens
FROM numbers n LEFT JOIN made m USING (wheel_turn) LEFT JOIN rolled r USING (wheel_turn) WHERE n.wheel_turn > 0 ORDER BY n.wheel_turn
"""

_FRONTIER = f"""
WITH solved AS (
    SELECT t.wheel_turn, k.hops, avg((t.outcome = 'success')::INT) AS rate
    FROM (SELECT * FROM outcomes WHERE {WHEEL_ROLLOUTS} AND outcome <> 'invalid') t JOIN tasks k ON k.key = t.task_key
    GROUP BY t.wheel_turn, t.task_key, k.hops HAVING count(*) >= 2
)
SELECT wheel_turn, hops, count(*) AS tasks, count(*) FILTER (rate = 0) AS never, count(*) FILTER (rate > 0 AND rate < 1) AS sometimes,
    count(*) FILTER (rate = 1) AS always
FROM solved GROUP BY wheel_turn, hops ORDER BY wheel_turn, hops
"""
"""RL tasks with at least two valid attempts, by hops and by how many of these attempts succeeded."""

_TOOLS = """
WITH made AS (SELECT wheel_turn, stage, count(*) AS trajectories FROM trajectories GROUP BY ALL)
SELECT t.wheel_turn, t.stage, c.tool, any_value(m.trajectories) AS trajectories, count(*) AS calls,
    count(*) FILTER (c.outcome = 'ok') AS ok, sum(c.retries)::BIGINT AS retries,
    quantile_cont(c.latency_seconds, 0.5) AS p50, quantile_cont(c.latency_seconds, 0.95) AS p95
FROM tool_calls c JOIN trajectories t ON t.id = c.trajectory_id JOIN made m ON (m.wheel_turn, m.stage) = (t.wheel_turn, t.stage)
WHERE c.tool <> 'answer' GROUP BY t.wheel_turn, t.stage, c.tool ORDER BY 1, 2, 3
"""

_POLICIES = """
WITH RECURSIVE line AS (
    SELECT id, 0 AS depth, [(wheel_turn, id)] AS place FROM policies WHERE parent IS NULL OR parent NOT IN (SELECT id FROM policies)
    UNION ALL
    SELECT p.id, line.depth + 1, list_append(line.place, (p.wheel_turn, p.id)) FROM policies p JOIN line ON p.parent = line.id
), trained AS (
    SELECT policy, string_agg(format('{:,} {}', items, kind), ', ' ORDER BY items DESC, kind) AS trained_on
    FROM (SELECT policy, kind, count(*) AS items FROM training_items GROUP BY policy, kind) GROUP BY policy
)
SELECT id, parent, stage, wheel_turn, snapshot, promoted, line.depth, t.trained_on
FROM policies JOIN line USING (id) LEFT JOIN trained t ON t.policy = id ORDER BY line.place
"""
"""Policies depth first, with their distance from the first ancestor and their training data by kind."""

_DECISIONS = """
SELECT DISTINCT ON (r.wheel_turn) r.wheel_turn, coalesce(r.figures->>'candidate', '') AS candidate,
    coalesce((r.figures->>'promoted')::BOOL, false) AS promoted, r.figures->>'reason' AS reason
FROM runs r WHERE r.stage = 'gate' AND r.state = 'completed' ORDER BY r.wheel_turn
"""


def _rows(lake: Lake, query: str) -> tuple[Row, ...]:
    return tuple(lake.query(query).to_pylist())


def _curves(lake: Lake, runs: Mapping[str, Run]) -> tuple[Curve, ...]:
    found = [row for row in _rows(lake, _CURVES) if row["run_id"] in runs]
    curves = [Curve(runs[row["run_id"]], row["name"], tuple(row["steps"]), tuple(row["points"])) for row in found]
    return tuple(sorted(curves, key=lambda curve: (curve.run.wheel_turn, curve.run.id, curve.name)))
