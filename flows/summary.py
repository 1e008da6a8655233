"""The table at the end of a run: success on every suite after each stage of each turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flows.verdicts import paired, probability, read_verdicts
from warehouse import Lake

Rows = list[dict[str, Any]]


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
    from rich.console import Console
    from rich.table import Table

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


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Rows as they are."""
    import pyarrow

    from flows.commands.rows import print_result

    columns = list(dict.fromkeys(name for row in rows for name in row))
    print_result(pyarrow.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows]), "table")


def stage_name(row: dict[str, Any]) -> str:
    """The stage, with the variant that stands in the policy's id."""
    return str(row["policy"]).split("-", 1)[-1]


def _change(row: dict[str, Any]) -> str:
    if row["change"] is None:
        return ""
    return f"{100 * row['change']:+.1f} ({probability(row['p_value'])})"


def _rate(row: dict[str, Any], interval: bool = False) -> str:
    if row["success"] is None:
        return "–"
    around = f" ({100 * row['low']:.1f}–{100 * row['high']:.1f})" if interval else ""
    return f"{100 * row['success']:.1f}{around}"
