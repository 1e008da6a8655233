"""The gate: a candidate becomes the champion only if the held-out suites say that it is not worse.

The first turn's policy has no champion to beat. Later, a candidate is promoted if on no suite it falls by more than
`evaluation.largest_fall`; a paired test (McNemar, exact) on the same tasks is stored beside the decision.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from flows.plan import policy_id
from flows.verdicts import Solved, paired, read_verdicts
from flows.workshop import Workshop
from warehouse import Failure, Policy


def promote(shop: Workshop, turn: int) -> dict[str, Any]:
    """Compare the turn's policy with the champion and promote it or not; returns the comparison and the decision."""
    candidate = shop.policy(policy_id(turn, "rl"))
    champions = [policy for policy in shop.lake.policies("promoted") if policy.wheel_turn < turn]
    champion = max(champions, key=lambda policy: policy.wheel_turn, default=None)
    comparison = compare_on_suites(shop, champion, candidate) if champion else {}
    fallen = [name for name, row in comparison.items() if row["difference"] < -shop.config.evaluation.largest_fall]
    if fallen:
        shop.lake.add([Failure("gate", "not_promoted", f"{candidate.id} falls on {', '.join(fallen)}", comparison)])
    else:
        shop.lake.replace([replace(candidate, promoted=True)])
    return {"candidate": candidate.id, "champion": champion.id if champion else None, "promoted": not fallen, **comparison}


def compare_on_suites(shop: Workshop, champion: Policy, candidate: Policy) -> dict[str, Any]:
    """The comparison of the two on every suite."""
    verdicts = read_verdicts(shop.lake)
    return {
        suite: compare(verdicts.get((champion.id, suite), {}), verdicts.get((candidate.id, suite), {}))
        for suite in shop.config.evaluation.suites
    }


def compare(before: Solved, after: Solved) -> dict[str, Any]:
    """Success of both on the tasks that both have a verdict for, and the paired test of the difference."""
    test = paired(before, after)
    if test is None:
        return {"tasks": 0, "difference": 0.0}
    before_share, after_share = (test.both + test.only_a) / test.tasks, (test.both + test.only_b) / test.tasks
    figures = {"tasks": test.tasks, "before": before_share, "after": after_share, "difference": test.difference}
    return {**figures, **{f"mcnemar_{name}": value for name, value in asdict(test).items()}}
