"""What evaluations came to: which tasks a policy solved, two policies compared on the same tasks, and the table at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from eval.statistics import PairedTest, mcnemar
from warehouse import Lake

Rows = list[dict[str, Any]]

Solved = Mapping[Any, bool]
"""Whether a task was solved, by its key; tasks without a verdict are not in it."""

_VERDICTS = """
SELECT t.policy, coalesce(t.suite, 'unnamed') AS suite, t.task_key, bool_and(o.outcome = 'success') AS solved
FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
WHERE t.stage = 'eval' AND o.outcome IN ('success', 'failure') GROUP BY ALL ORDER BY 1, 2, 3
"""


def read_verdicts(lake: Lake) -> dict[tuple[str, str], Solved]:
    """The verdicts of every evaluation, by policy and suite."""
    verdicts: dict[tuple[str, str], dict[str, bool]] = {}
    for row in lake.query(_VERDICTS).to_pylist():
        verdicts.setdefault((row["policy"], row["suite"]), {})[row["task_key"]] = row["solved"]
    return dict(verdicts)


def paired(before: Solved, after: Solved) -> PairedTest | None:
    """McNemar's test on the tasks that both have a verdict for; None where there are none."""
    keys = sorted(before.keys() & after.keys())
    return mcnemar([before[key] for key in keys], [after[key] for key in keys]) if keys else None


def probability(p_value: float) -> str:
    """A p-value as it stands in a sentence."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def evaluation_rows(lake: Lake) -> Rows:
    """The rows of the view `evaluations`, in the order of the wheel.

    A row over all hops also has `change`, success less that of the policy's parent on the tasks that both were judged on, and
    `p_value` of the paired test (McNemar, exact); both are None where the parent was not evaluated on the suite.
    """
    rows = lake.query(
        """
        SELECT turn, stage, policy, suite, hops, tasks, invalid, success, low, high FROM evaluations
        ORDER BY suite <> 'held_out', suite, turn, list_position(['init', 'cpt', 'sft', 'rl'], stage), policy, hops NULLS FIRST
        """
    ).to_pylist()
    parents = {policy.id: policy.parent for policy in lake.policies()}
    verdicts = read_verdicts(lake)
    for row in (row for row in rows if row["hops"] is None):
        before = verdicts.get((parents.get(row["policy"]) or "", row["suite"]), {})
        test = paired(before, verdicts.get((row["policy"], row["suite"]), {}))
        row |= {"change": test.difference if test else None, "p_value": test.p_value if test else None}
    return rows


def print_table(rows: Rows) -> None:
    """Success after each stage: one line a policy and suite, one column for all tasks and for each number of hops."""
    title = "success on held-out tasks, % (95 % interval); change against the stage before on the same tasks (McNemar)"
    table = Table(title=title, title_justify="left")
    hops = sorted({row["hops"] for row in rows if row["hops"] is not None})
    for name in ("suite", "turn", "after", "tasks", "invalid", "success", "change", *(f"{h} hop{'s' if h > 1 else ''}" for h in hops)):
        table.add_column(name, no_wrap=True, justify="left" if name in ("suite", "after") else "right")
    for overall in (row for row in rows if row["hops"] is None):
        parts = {row["hops"]: row for row in rows if row["policy"] == overall["policy"] and row["suite"] == overall["suite"]}
        table.add_row(
            overall["suite"],
            str(overall["turn"]),
            stage_name(overall),
            str(overall["tasks"]),
            str(overall["invalid"]),
            _rate(overall, interval=True),
            _change(overall),
            *(_rate(parts[h]) if h in parts else "" for h in hops),
        )
    Console(width=max(150, Console().width)).print(table)


def stage_name(row: dict[str, Any]) -> str:
    """The stage, with the variant that stands in the policy's id."""
    return str(row["policy"]).split("-", 1)[-1]


def _change(row: dict[str, Any]) -> str:
    return "" if row["change"] is None else f"{100 * row['change']:+.1f} ({probability(row['p_value'])})"


def _rate(row: dict[str, Any], interval: bool = False) -> str:
    if row["success"] is None:
        return "–"
    around = f" ({100 * row['low']:.1f}–{100 * row['high']:.1f})" if interval else ""
    return f"{100 * row['success']:.1f}{around}"
