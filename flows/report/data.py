"""What the report shows, as read from the lake: evaluations, curves, runs, lineage, failures and tool use.

Everything here is a query and a frozen value; no figure is drawn and no sentence is written. The report is a pure function
of the lake, so the same snapshot gives the same page.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flows.verdicts import Solved, read_verdicts
from warehouse import Lake

STAGES = ("init", "cpt", "sft", "rl")
"""Stages of a turn of the wheel, in their order."""
COMPARED = ("fixed_first", "fixed_last")
"""Variants of the RL stage that exist for comparison only and are no part of the wheel."""


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


@dataclass(frozen=True, slots=True)
class Curve:
    """One figure of one run over its steps."""

    run: RunFacts
    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ancestor:
    """One policy in the lineage; `depth` is its distance from the first ancestor."""

    id: str
    parent: str | None
    stage: str
    wheel_turn: int
    snapshot: int | None
    promoted: bool
    depth: int


@dataclass(frozen=True, slots=True)
class FailureCount:
    """How often something was dropped or quarantined for one kind of reason, with one reason as an example."""

    stage: str
    kind: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Calls of one tool by the trajectories of one stage in one turn of the wheel; `ok` of them had outcome «ok»."""

    wheel_turn: int
    stage: str
    tool: str
    calls: int
    ok: int


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
    lineage: tuple[Ancestor, ...]
    failures: tuple[FailureCount, ...]
    tools: tuple[ToolUse, ...]
    collected: tuple[Collected, ...]
    verdicts: dict[tuple[str, str], Solved]
    """(policy, suite) -> task key -> solved (by every attempt), of judged evaluation trajectories: what the paired tests are made of."""


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
        lineage=_lineage(lake),
        failures=tuple(FailureCount(**row) for row in rows(lake, _FAILURES)),
        tools=tuple(ToolUse(**row) for row in rows(lake, _TOOLS)),
        collected=tuple(Collected(**row) for row in rows(lake, _COLLECTED)),
        verdicts=read_verdicts(lake),
    )


def rows(lake: Lake, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """The rows of a query as dictionaries."""
    found: list[dict[str, Any]] = lake.query(sql, parameters).to_pylist()
    return found


_FAILURES = """
SELECT stage, kind, count(*) AS count, min(reason) AS reason FROM failures GROUP BY stage, kind ORDER BY count DESC, stage, kind
"""

_TOOLS = """
SELECT t.wheel_turn, t.stage, c.tool, count(*) AS calls, count(*) FILTER (c.outcome = 'ok') AS ok
FROM tool_calls c JOIN trajectories t ON t.id = c.trajectory_id
WHERE c.tool <> 'answer' GROUP BY ALL ORDER BY 1, 2, 3
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
SELECT run_id, name, list(step ORDER BY step) AS steps, list(value ORDER BY step) AS points
FROM metrics WHERE isfinite(value) GROUP BY run_id, name ORDER BY run_id, name
"""


def _totals(lake: Lake) -> Totals:
    (row,) = rows(
        lake,
        """SELECT (SELECT count(*) FROM tasks) AS tasks, count(*) AS trajectories, coalesce(sum(t.n_turns), 0)::BIGINT AS turns,
        count(*) FILTER (o.outcome = 'invalid') AS invalid, (SELECT count(*) FROM examples) AS examples
        FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id""",
    )
    return Totals(**row)


def _evaluations(lake: Lake) -> tuple[Evaluation, ...]:
    return tuple(Evaluation(**row) for row in rows(lake, _EVALUATIONS))


def _runs(lake: Lake) -> tuple[RunFacts, ...]:
    found = rows(lake, "SELECT id, stage, wheel_turn, state, config, figures FROM runs ORDER BY wheel_turn, started, id")
    return tuple(_run(row) for row in found)


def _run(row: dict[str, Any]) -> RunFacts:
    config, figures = _json(row["config"]), _json(row["figures"])
    variant, policy = config.get("variant"), figures.get("policy")
    return RunFacts(
        id=row["id"],
        stage=row["stage"],
        wheel_turn=row["wheel_turn"],
        state=row["state"],
        variant=None if variant is None else str(variant),
        rounds=_rounds_of(variant, _rounds(config)),
        policy=policy if isinstance(policy, str) else None,
    )


def _rounds_of(variant: Any, rounds: tuple[int, ...]) -> tuple[int, ...]:
    """The horizons in force: a fixed variant keeps the schedule in its configuration and uses one value of it."""
    return {"fixed_first": rounds[:1], "fixed_last": rounds[-1:]}.get(variant, rounds)


def _json(value: Any) -> dict[str, Any]:
    """A JSON column, which comes as text or as a structure, as a dictionary."""
    parsed = json.loads(value) if isinstance(value, str) else value
    return parsed if isinstance(parsed, dict) else {}


def _rounds(config: dict[str, Any]) -> tuple[int, ...]:
    """The horizon's rounds, at whatever depth of the configuration they stand."""
    here = config.get("rounds")
    if isinstance(here, list):
        return tuple(here)
    inner = [_rounds(value) for value in config.values() if isinstance(value, dict)]
    return next((rounds for rounds in inner if rounds), ())


def _curves(lake: Lake, runs: dict[str, RunFacts]) -> tuple[Curve, ...]:
    found = [row for row in rows(lake, _CURVES) if row["run_id"] in runs]
    curves = [Curve(runs[row["run_id"]], row["name"], tuple(row["steps"]), tuple(row["points"])) for row in found]
    return tuple(sorted(curves, key=lambda curve: (curve.run.wheel_turn, curve.run.id, curve.name)))


def _lineage(lake: Lake) -> tuple[Ancestor, ...]:
    """All policies, each after its parent."""
    found = rows(lake, "SELECT id, parent, stage, wheel_turn, snapshot, promoted FROM policies ORDER BY wheel_turn, id")
    known = {row["id"] for row in found}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for row in found:
        children.setdefault(row["parent"] if row["parent"] in known else None, []).append(row)
    ordered: list[Ancestor] = []
    pending = [(row, 0) for row in reversed(children.get(None, []))]
    while pending:
        row, depth = pending.pop()
        ordered.append(Ancestor(**row, depth=depth))
        pending.extend((child, depth + 1) for child in reversed(children.get(row["id"], [])))
    return tuple(ordered)
