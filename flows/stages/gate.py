"""The gate: a candidate becomes the champion only if the held-out suites say that it is not worse.

The first turn's policy has no champion to beat. Later, a candidate is promoted if on no suite it falls by more than
`evaluation.largest_fall`; a paired test (McNemar, exact) on the same tasks is stored beside the decision.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from eval.statistics import mcnemar
from flows.stages.training import policy_id
from flows.workshop import Workshop
from warehouse import Failure, Outcome, Policy


def promote(shop: Workshop, turn: int) -> dict[str, Any]:
    """Compare the turn's policy with the champion and promote it or not; returns the comparison and the decision."""
    candidate = shop.policy(policy_id(turn, "rl"))
    champions = [policy for policy in shop.lake.policies("promoted") if policy.wheel_turn < turn]
    champion = max(champions, key=lambda policy: policy.wheel_turn, default=None)
    comparison = {suite: compare(shop, champion, candidate, suite) for suite in shop.config.evaluation.suites} if champion else {}
    fallen = [name for name, row in comparison.items() if row["difference"] < -shop.config.evaluation.largest_fall]
    if fallen:
        shop.lake.add([Failure("gate", "not_promoted", f"{candidate.id} falls on {', '.join(fallen)}", comparison)])
    else:
        shop.lake.replace([replace(candidate, promoted=True)])
    return {"candidate": candidate.id, "champion": champion.id if champion else None, "promoted": not fallen, **comparison}


def compare(shop: Workshop, champion: Policy, candidate: Policy, suite: str) -> dict[str, Any]:
    """Success of both on the tasks that both have a valid outcome for, and the paired test of the difference."""
    before, after = outcomes(shop, champion, suite), outcomes(shop, candidate, suite)
    keys = sorted(before.keys() & after.keys())
    old, new = [before[key] for key in keys], [after[key] for key in keys]
    count = max(1, len(keys))
    return {
        "tasks": len(keys),
        "before": sum(old) / count,
        "after": sum(new) / count,
        "difference": (sum(new) - sum(old)) / count,
        **{f"mcnemar_{name}": value for name, value in asdict(mcnemar(new, old)).items()},
    }


def outcomes(shop: Workshop, policy: Policy, suite: str) -> dict[str, bool]:
    """Whether `policy` solved each task of `suite`; invalid trajectories are left out."""
    rows = shop.lake.query(
        "SELECT task_key, outcome FROM trajectories WHERE stage = 'eval' AND policy = ? AND suite = ? AND outcome <> ?",
        [policy.id, suite, Outcome.INVALID.value],
    ).to_pylist()
    return {row["task_key"]: row["outcome"] == Outcome.SUCCESS.value for row in rows}
