"""What the report shows, as read from the lake: evaluations, runs, curves, failures; what belongs to one section stands in its module.

Everything here is a query and a frozen value; no figure is drawn and no sentence is written. The report is a pure function
of the lake and the policies' tokenizers, so the same snapshot gives the same page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flows.report.iterations import FrontierDepth, Iteration, Lineage, ToolUse, read_frontier, read_iterations, read_lineage, read_tools
from flows.report.questions import DrawnQuestion, GraphShape, read_graphs, read_questions
from flows.report.yields import PartYield, read_yields
from flows.results import Solved, read_verdicts
from flows.variants import horizons
from rl.learner.config import MetricLimit
from warehouse import Lake, Run

STAGES = ("init", "cpt", "sft", "rl")
"""Stages of a turn of the wheel, in their order."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Success of one policy on one suite, at one number of hops or all (None): shares in [0, 1], None without a verdict.

    `invalid` counts trajectories, of which there may be several a task.
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
    """One run: its stage, variant of the curriculum (None where it is the wheel's own), horizon rounds and the policy it made."""

    id: str
    stage: str
    wheel_turn: int
    state: str
    variant: str | None
    rounds: tuple[int, ...]
    policy: str | None
    limits: tuple[MetricLimit, ...] = ()
    """The limits on its metrics, as the run was configured."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One figure of one run over its steps."""

    run: RunFacts
    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FailureCount:
    """How often something was dropped or quarantined for one kind of reason, with one reason as an example."""

    stage: str
    kind: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Alert:
    """A limit that a metric of a run broke: its value at `step` (NaN where it is no number), and the first of the steps in a row."""

    run: str
    metric: str
    step: int
    since: int
    value: float
    reason: str


@dataclass(frozen=True, slots=True)
class Collected:
    """Trajectories of one stage in one turn of the wheel, and how many of them are invalid."""

    wheel_turn: int
    stage: str
    trajectories: int
    invalid: int


@dataclass(frozen=True, slots=True)
class Totals:
    """How much the lake holds."""

    tasks: int
    trajectories: int
    turns: int
    invalid: int
    examples: int


@dataclass(frozen=True, slots=True)
class ReportData:
    """All that the report shows but the trajectories to read."""

    snapshot: int
    totals: Totals
    evaluations: tuple[Evaluation, ...]
    runs: tuple[RunFacts, ...]
    curves: tuple[Curve, ...]
    alerts: tuple[Alert, ...]
    iterations: tuple[Iteration, ...]
    frontier: tuple[FrontierDepth, ...]
    lineage: Lineage
    failures: tuple[FailureCount, ...]
    tools: tuple[ToolUse, ...]
    collected: tuple[Collected, ...]
    questions: tuple[DrawnQuestion, ...]
    graphs: tuple[GraphShape, ...]
    yields: tuple[PartYield, ...]
    verdicts: dict[tuple[str, str], Solved]
    """(policy, suite) -> task key -> share of its judged attempts that solved it: what the paired tests are made of."""


def stage_order(stage: str) -> int:
    """Place of a stage within a turn of the wheel; others come last."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def read_report_data(lake: Lake) -> ReportData:
    """Everything that the report shows, in a fixed order."""
    runs = _runs(lake)
    return ReportData(
        snapshot=lake.snapshot(),
        totals=_totals(lake),
        evaluations=_evaluations(lake),
        runs=runs,
        curves=_curves(lake, {run.id: run for run in runs}),
        alerts=tuple(Alert(**row) for row in lake.query(_ALERTS).to_pylist()),
        iterations=read_iterations(lake),
        frontier=read_frontier(lake),
        lineage=read_lineage(lake),
        failures=tuple(FailureCount(**row) for row in lake.query(_FAILURES).to_pylist()),
        tools=read_tools(lake),
        collected=tuple(Collected(**row) for row in lake.query(_COLLECTED).to_pylist()),
        questions=read_questions(lake),
        graphs=read_graphs(lake),
        yields=read_yields(lake),
        verdicts=read_verdicts(lake),
    )


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
"""Figures of steps, and what each part of the reward brought on average at each step of RL, whose runs bear the name of their policy."""


def _totals(lake: Lake) -> Totals:
    (row,) = lake.query(
        """SELECT (SELECT count(*) FROM tasks) AS tasks, count(*) AS trajectories, coalesce(sum(t.n_turns), 0)::BIGINT AS turns,
        count(*) FILTER (o.outcome = 'invalid') AS invalid, (SELECT count(*) FROM examples) AS examples
        FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id"""
    ).to_pylist()
    return Totals(**row)


def _evaluations(lake: Lake) -> tuple[Evaluation, ...]:
    return tuple(Evaluation(**row) for row in lake.query(_EVALUATIONS).to_pylist())


def _runs(lake: Lake) -> tuple[RunFacts, ...]:
    return tuple(_run(run) for run in sorted(lake.runs(), key=lambda run: (run.wheel_turn, run.started, run.id)))


def _run(run: Run) -> RunFacts:
    variant, policy = run.config.get("variant"), run.figures.get("policy")
    return RunFacts(
        id=run.id,
        stage=run.stage,
        wheel_turn=run.wheel_turn,
        state=run.state,
        variant=None if variant is None else str(variant),
        rounds=horizons(str(variant or ""), _rounds(run.config)),
        policy=policy if isinstance(policy, str) else None,
        limits=tuple(MetricLimit.model_validate(limit) for limit in run.config.get("rl", {}).get("health", {}).get("limits", ())),
    )


def _rounds(config: dict[str, Any]) -> tuple[int, ...]:
    """The horizon's rounds, at whatever depth of the configuration they stand."""
    here = config.get("rounds")
    if isinstance(here, list):
        return tuple(here)
    inner = [_rounds(value) for value in config.values() if isinstance(value, dict)]
    return next((rounds for rounds in inner if rounds), ())


def _curves(lake: Lake, runs: dict[str, RunFacts]) -> tuple[Curve, ...]:
    found = [row for row in lake.query(_CURVES).to_pylist() if row["run_id"] in runs]
    curves = [Curve(runs[row["run_id"]], row["name"], tuple(row["steps"]), tuple(row["points"])) for row in found]
    return tuple(sorted(curves, key=lambda curve: (curve.run.wheel_turn, curve.run.id, curve.name)))
