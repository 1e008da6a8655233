"""What the report shows, as read from the lake: evaluations, runs, curves, iterations, lineage, failures.

Only queries and values. The report is a pure function of the lake and the policies' tokenizers: the same snapshot gives the same page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flows.plan import WHEEL_ROLLOUTS
from flows.results import Solved, read_verdicts
from flows.variants import Variant, horizons
from rl.learner.config import MetricLimit
from warehouse import Lake, Run

STAGES = ("init", "cpt", "sft", "rl")
"""Stages of an iteration, in order."""
Row = Mapping[str, Any]
"""A row of a query, by column."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Success of a policy on a suite, at one number of hops or all (None): shares in [0, 1], None without a verdict.

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
        """Trajectories with a verdict."""
        return self.trajectories - self.invalid


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run: its stage, variant (None for the wheel's own), horizon rounds, policy, and limits on its metrics."""

    id: str
    stage: str
    wheel_turn: int
    variant: str | None
    rounds: tuple[int, ...]
    policy: str | None
    limits: tuple[MetricLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run over its steps."""

    run: RunFacts
    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Alert:
    """A limit that a metric broke: its value at `step` (NaN if not finite), and the first of the consecutive steps."""

    run: str
    metric: str
    step: int
    since: int
    value: float
    reason: str


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A policy; `depth` is its distance from the first ancestor, `items` its training data by kind."""

    id: str
    parent: str | None
    stage: str
    wheel_turn: int
    snapshot: int | None
    promoted: bool
    depth: int
    items: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Lineage:
    """All policies, each after its parent, and the gate's decisions by iteration."""

    policies: tuple[Ancestor, ...]
    decisions: tuple[Row, ...]

    @property
    def champion(self) -> Ancestor | None:
        """The policy that was promoted last."""
        promoted = [policy for policy in self.policies if policy.promoted]
        return max(promoted, key=lambda policy: (policy.wheel_turn, policy.depth), default=None)

    @property
    def line(self) -> tuple[Ancestor, ...]:
        """The champion and its ancestors, the first ancestor first."""
        by_id = {policy.id: policy for policy in self.policies}
        line, here = list[Ancestor](), self.champion
        while here is not None and here not in line:
            line.append(here)
            here = by_id.get(here.parent) if here.parent else None
        return tuple(reversed(line))


@dataclass(frozen=True, slots=True)
class ReportData:
    """All that the report shows but questions, synthesis and trajectories. Rows have the columns of their queries below."""

    snapshot: int
    totals: Row
    evaluations: tuple[Evaluation, ...]
    runs: tuple[RunFacts, ...]
    curves: tuple[Curve, ...]
    alerts: tuple[Alert, ...]
    iterations: tuple[Row, ...]
    frontier: tuple[Row, ...]
    lineage: Lineage
    failures: tuple[Row, ...]
    tools: tuple[Row, ...]
    collected: tuple[Row, ...]
    verdicts: dict[tuple[str, str], Solved]
    """(policy, suite) -> task key -> share of its judged attempts that solved it, for paired tests."""


def read_report_data(lake: Lake) -> ReportData:
    """Everything that the report shows, in a fixed order."""
    runs = tuple(map(_run, sorted(lake.runs(), key=lambda run: (run.wheel_turn, run.started, run.id))))
    return ReportData(
        snapshot=lake.snapshot(),
        totals=_rows(lake, _TOTALS)[0],
        evaluations=tuple(Evaluation(**row) for row in _rows(lake, _EVALUATIONS)),
        runs=runs,
        curves=_curves(lake, {run.id: run for run in runs}),
        alerts=tuple(Alert(**row) for row in _rows(lake, _ALERTS)),
        iterations=_rows(lake, _ITERATIONS),
        frontier=_rows(lake, _FRONTIER),
        lineage=_lineage(lake),
        failures=_rows(lake, _FAILURES),
        tools=_rows(lake, _TOOLS),
        collected=_rows(lake, _COLLECTED),
        verdicts=read_verdicts(lake),
    )


def stage_order(stage: str) -> int:
    """Position of a stage in an iteration; others come last."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def own_runs(data: ReportData, stage: str) -> list[Curve]:
    """Curves of the wheel's own runs of a stage, without compared variants."""
    return [curve for curve in data.curves if curve.run.stage == stage and curve.run.variant not in list(Variant)]


def wheel_evaluations(data: ReportData) -> tuple[Evaluation, ...]:
    """Evaluations of the wheel's own policies: one policy per stage and iteration, the promoted one if there are several."""
    compared = {run.policy for run in data.runs if run.variant in list(Variant)}
    promoted = {policy.id for policy in data.lineage.policies if policy.promoted}
    own = [evaluation for evaluation in data.evaluations if evaluation.policy not in compared]
    chosen: dict[tuple[int, str], str] = {}
    for evaluation in own:
        place = (evaluation.turn, evaluation.stage)
        if place not in chosen or (evaluation.policy in promoted and chosen[place] not in promoted):
            chosen[place] = evaluation.policy
    return tuple(evaluation for evaluation in own if chosen[evaluation.turn, evaluation.stage] == evaluation.policy)


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
"""Metrics, and the mean of each part of the reward per step of RL; an RL run has the id of its policy."""

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
"""Tasks of RL with at least two valid attempts, by depth and by how many of these solved them."""

_TOOLS = """
WITH made AS (SELECT wheel_turn, stage, count(*) AS trajectories FROM trajectories GROUP BY ALL)
SELECT t.wheel_turn, t.stage, c.tool, any_value(m.trajectories) AS trajectories, count(*) AS calls,
    count(*) FILTER (c.outcome = 'ok') AS ok, sum(c.retries)::BIGINT AS retries,
    quantile_cont(c.latency_seconds, 0.5) AS p50, quantile_cont(c.latency_seconds, 0.95) AS p95
FROM tool_calls c JOIN trajectories t ON t.id = c.trajectory_id JOIN made m ON (m.wheel_turn, m.stage) = (t.wheel_turn, t.stage)
WHERE c.tool <> 'answer' GROUP BY t.wheel_turn, t.stage, c.tool ORDER BY 1, 2, 3
"""

_POLICIES = "SELECT id, parent, stage, wheel_turn, snapshot, promoted FROM policies ORDER BY wheel_turn, id"

_ITEMS = "SELECT policy, kind, count(*) AS items FROM training_items GROUP BY policy, kind ORDER BY policy, items DESC, kind"

_DECISIONS = """
SELECT r.wheel_turn, coalesce(r.figures->>'candidate', '') AS candidate,
    coalesce((r.figures->>'promoted')::BOOL, false) AS promoted, r.figures->>'reason' AS reason
FROM runs r WHERE r.stage = 'gate' AND r.state = 'completed' ORDER BY r.wheel_turn
"""


def _rows(lake: Lake, query: str) -> tuple[Row, ...]:
    return tuple(lake.query(query).to_pylist())


def _run(run: Run) -> RunFacts:
    variant, policy = run.config.get("variant"), run.figures.get("policy")
    return RunFacts(
        id=run.id,
        stage=run.stage,
        wheel_turn=run.wheel_turn,
        variant=None if variant is None else str(variant),
        rounds=horizons(str(variant or ""), _rounds(run.config)),
        policy=policy if isinstance(policy, str) else None,
        limits=tuple(MetricLimit.model_validate(limit) for limit in run.config.get("rl", {}).get("health", {}).get("limits", ())),
    )


def _rounds(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The horizon's rounds, at any depth of the configuration."""
    here = config.get("rounds")
    if isinstance(here, list):
        return tuple(here)
    inner = [_rounds(value) for value in config.values() if isinstance(value, dict)]
    return next((rounds for rounds in inner if rounds), ())


def _curves(lake: Lake, runs: Mapping[str, RunFacts]) -> tuple[Curve, ...]:
    found = [row for row in _rows(lake, _CURVES) if row["run_id"] in runs]
    curves = [Curve(runs[row["run_id"]], row["name"], tuple(row["steps"]), tuple(row["points"])) for row in found]
    return tuple(sorted(curves, key=lambda curve: (curve.run.wheel_turn, curve.run.id, curve.name)))


def _lineage(lake: Lake) -> Lineage:
    items: dict[str, list[tuple[str, int]]] = {}
    for row in _rows(lake, _ITEMS):
        items.setdefault(row["policy"], []).append((row["kind"], row["items"]))
    found = _rows(lake, _POLICIES)
    known, children = {row["id"] for row in found}, dict[str | None, list[Row]]()
    for row in found:
        children.setdefault(row["parent"] if row["parent"] in known else None, []).append(row)
    ordered: list[Ancestor] = []
    pending = [(row, 0) for row in reversed(children.get(None, []))]
    while pending:  # depth first
        row, depth = pending.pop()
        ordered.append(Ancestor(**row, depth=depth, items=tuple(items.get(row["id"], ()))))
        pending.extend((child, depth + 1) for child in reversed(children.get(row["id"], [])))
    return Lineage(tuple(ordered), tuple({row["wheel_turn"]: row for row in _rows(lake, _DECISIONS)}.values()))
