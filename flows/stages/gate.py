"""The gate: a candidate becomes champion only if held-out suites show that it is better overall and worse on none.

It decides on separate suites (`evaluation.gate`), because a score used for selection is biased. Better: over the tasks of all gate suites
it solves more than the champion, and the paired test on common tasks gives a p-value of at most `evaluation.largest_p_value`. Worse: its
success drops by more than `evaluation.largest_fall` on a suite. A single test over all tasks, rather than one per suite, keeps the
probability of a false promotion at that p-value. The first policy has no champion to beat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from flows.context import RunContext
from flows.evaluation_config import EvaluationConfig
from flows.plan import policy_id
from flows.results import Solved, paired, read_verdicts
from warehouse import Failure, Policy

ALL = "all suites"


def promote(context: RunContext, turn: int) -> dict[str, Any]:
    """Compare the iteration's policy with the champion and promote it or not. Return the comparison, the decision and its reason."""
    wanted = policy_id(turn, context.config.for_turn(turn).wheel.stages[-1])
    candidate = next(iter(context.lake.policies("id = ?", [wanted])), None)
    champion = context.champion(before=turn)
    comparison = compare_on_suites(context, champion, candidate) if champion and candidate else {}
    refusal = "it was not made" if candidate is None else ""
    if champion and candidate:
        refusal = objection(comparison, context.config.evaluation)
    if candidate is not None and (same := _unchanged(context, candidate)) is not None:
        refusal = f"it has the weights of {same}: it learned nothing"
    if refusal:
        kept = champion.id if champion else "no policy yet"
        context.lake.add(
            [Failure("gate", "not_promoted", f"{wanted}: {refusal}; the champion is {kept}", {"candidate": wanted, **comparison})]
        )
    elif candidate is not None:
        context.lake.replace([replace(candidate, promoted=True)])
    reason = f"{wanted} is not promoted: {refusal}" if refusal else f"{wanted} is promoted: {_summarize(comparison)}"
    decision = {"candidate": wanted, "champion": champion.id if champion else None, "promoted": not refusal, "reason": reason}
    return decision | comparison


def _unchanged(context: RunContext, candidate: Policy) -> str | None:
    """Return an earlier policy with the same weights, if any."""
    same = context.lake.policies("weights_digest = ? AND id <> ?", [candidate.weights_digest, candidate.id])
    return same[0].id if same else None


def objection(comparison: Mapping[str, Mapping[str, Any]], config: EvaluationConfig) -> str:
    """Return why the candidate may not be promoted; empty if it may."""
    suites = {name: row for name, row in comparison.items() if name != ALL}
    unjudged = [name for name, row in suites.items() if not row["tasks"]]
    if unjudged or not suites:
        return f"no task of {', '.join(unjudged) or 'any suite'} has a verdict for both"
    fallen = [
        f"{name} by {-100 * row['difference']:.1f} points" for name, row in suites.items() if row["difference"] < -config.largest_fall
    ]
    if fallen:
        return f"it falls on {', '.join(fallen)}"
    together = comparison[ALL]
    if together["difference"] <= 0 or together["p_value"] > config.largest_p_value:
        return f"it is not better: {_change(together)}"
    return ""


def compare_on_suites(context: RunContext, champion: Policy, candidate: Policy) -> dict[str, Any]:
    """Compare the two on every suite of the gate (without one, the reported suites), and on all their tasks together."""
    verdicts = read_verdicts(context.lake)
    pairs = {
        suite: (verdicts.get((champion.id, suite), {}), verdicts.get((candidate.id, suite), {}))
        for suite in context.config.evaluation.gate or context.config.evaluation.suites
    }
    together = tuple({(suite, key): solved for suite, pair in pairs.items() for key, solved in pair[side].items()} for side in (0, 1))
    return {suite: compare(*pair) for suite, pair in pairs.items()} | {ALL: compare(*together)}


def compare(before: Solved, after: Solved) -> dict[str, Any]:
    """Success of both on common tasks with a verdict, and the paired test of the difference."""
    test = paired(before, after)
    if test is None:
        return {"tasks": 0, "difference": 0.0}
    metrics = {name: getattr(test, name) for name in ("tasks", "before", "after", "difference")}
    return {**metrics, "test": test.name, **asdict(test)}


def _summarize(comparison: Mapping[str, Mapping[str, Any]]) -> str:
    return _change(comparison[ALL]) if comparison else "there is no champion to beat"


def _change(row: Mapping[str, Any]) -> str:
    return f"{100 * row['difference']:+.1f} points on {row['tasks']} tasks of the gate, p = {row['p_value']:.3g}"
