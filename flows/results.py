"""What trajectories came to by the latest verdicts: how often a policy solved each task, and two policies compared on the same tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eval.statistics import PairedTest, SignFlips, paired_test
from warehouse import Failure, Lake, Outcome, Score, Trajectory

Solved = Mapping[Any, float]
"""The share of a task's judged attempts that solved it, by its key; tasks without a verdict are not in it."""

_VERDICTS = """
SELECT t.policy, coalesce(t.suite, 'unnamed') AS suite, t.task_key, avg((o.outcome = 'success')::INT) AS solved
FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
WHERE t.stage = 'eval' AND o.outcome IN ('success', 'failure') GROUP BY ALL ORDER BY 1, 2, 3
"""


def read_verdicts(lake: Lake) -> dict[tuple[str, str], Solved]:
    """The verdicts of every evaluation, by policy and suite."""
    verdicts: dict[tuple[str, str], dict[str, float]] = {}
    for row in lake.query(_VERDICTS).to_pylist():
        verdicts.setdefault((row["policy"], row["suite"]), {})[row["task_key"]] = row["solved"]
    return dict(verdicts)


def judged_trajectories(lake: Lake, where: str, parameters: Sequence[Any] = ()) -> list[Trajectory]:
    """Trajectories that meet a condition on their table, each with the outcome that the latest verdict gives it, as every view has it."""
    found = lake.trajectories(where, parameters)
    sql = "SELECT trajectory_id, outcome FROM outcomes WHERE trajectory_id IN (SELECT unnest(?))"
    latest = {row["trajectory_id"]: row["outcome"] for row in lake.query(sql, [[one.id for one in found]]).to_pylist()}
    return [replace(one, outcome=Outcome(judged) if (judged := latest.get(one.id)) else None) for one in found]


def paired(before: Solved, after: Solved) -> PairedTest | SignFlips | None:
    """The paired test on the tasks that both have a verdict for; None where there are none."""
    keys = sorted(before.keys() & after.keys())
    return paired_test([before[key] for key in keys], [after[key] for key in keys]) if keys else None


def forget(lake: Lake, stage: str, broken: Mapping[str, str]) -> None:
    """Take trajectories out of the present, by their ids, with a row in `failures` of what had broken each; earlier snapshots keep them."""
    lake.add(Failure(stage, "retried", why, {"trajectory": name}) for name, why in broken.items())
    scores = lake.scores("trajectory_id IN (SELECT unnest(?))", [list(broken)]) if broken else ()
    lake.remove(Score, [(score.trajectory_id, score.verifier, score.version) for score in scores])
    lake.remove(Trajectory, broken)


def probability(p_value: float) -> str:
    """A p-value as it stands in a sentence."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
