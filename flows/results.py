"""What evaluations came to: which tasks a policy solved, and two policies compared on the same tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eval.statistics import PairedTest, mcnemar
from warehouse import Lake

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
