"""Attempts that a fault made invalid, taken out so that they are made again: without that, a suite with many has no result for good."""

from __future__ import annotations

from dataclasses import replace

from flows.plan import evaluation_id
from warehouse import Failure, Lake, Score, Trajectory


def forget_invalid(lake: Lake, policy: str, suite: str) -> int:
    """Take the invalid attempts of a policy at a suite out of the present, and return how many there were.

    Each leaves a row in `failures` with what had broken it; the attempts themselves stay in the lake's earlier snapshots.
    """
    sql = "SELECT trajectory_id, error FROM outcomes WHERE stage = 'eval' AND policy = ? AND suite = ? AND outcome = 'invalid' ORDER BY 1"
    broken = {row["trajectory_id"]: row["error"] for row in lake.query(sql, [policy, suite]).to_pylist()}
    if not broken:
        return 0
    lake.replace([replace(run, state="failed") for run in lake.runs("id = ?", [evaluation_id(policy, suite)])])
    lake.add(Failure("eval", "retried", error or "judged invalid", {"trajectory": name}) for name, error in broken.items())
    scores = lake.scores("trajectory_id IN (SELECT unnest(?))", [list(broken)])
    lake.remove(Score, [(score.trajectory_id, score.verifier, score.version) for score in scores])
    lake.remove(Trajectory, broken)
    return len(broken)
