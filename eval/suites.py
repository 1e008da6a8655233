"""Figures of a suite: success by hops with 95 % intervals, and two policies compared on the same tasks.

Invalid trajectories are counted apart and take part in no share, no interval and no test.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eval.statistics import Interval, PairedTest, bootstrap_difference, mcnemar, wilson
from warehouse.records import Outcome, Score, Task

Judged = tuple[Task, Score]


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """Success on the tasks of one number of hops, or of all (`hops` None).

    `tasks` counts all attempts, `invalid` those without a verdict. `success` is a share of the judged ones, None without any;
    `low` and `high` are Wilson's 95 % interval.
    """

    hops: int | None
    tasks: int
    invalid: int
    successes: int
    success: float | None
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SuiteFigures:
    """The figures of one policy on one suite."""

    overall: SuccessRate
    by_hops: tuple[SuccessRate, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policy b against policy a on the tasks that both were judged on; `left_out` counts the others.

    `difference` is success of b less success of a with its paired bootstrap interval, None without any pair.
    """

    test: PairedTest
    difference: Interval | None
    left_out: int


def suite_figures(judged: Iterable[Judged]) -> SuiteFigures:
    """Success over all tasks and by their number of hops, in increasing order."""
    pairs = list(judged)
    hops = sorted({task.hops for task, _ in pairs})
    by_hops = tuple(_success_rate(number, [score for task, score in pairs if task.hops == number]) for number in hops)
    return SuiteFigures(_success_rate(None, [score for _, score in pairs]), by_hops)


def compare(a: Iterable[Judged], b: Iterable[Judged], seed: int = 0) -> Comparison:
    """Pairs the verdicts of two policies by task key. Raises ValueError where one policy has a task twice."""
    verdicts_a, verdicts_b = _verdicts(a), _verdicts(b)
    keys = [key for key in sorted(verdicts_a.keys() & verdicts_b.keys()) if None not in (verdicts_a[key], verdicts_b[key])]
    solved_a, solved_b = [bool(verdicts_a[key]) for key in keys], [bool(verdicts_b[key]) for key in keys]
    difference = bootstrap_difference(solved_a, solved_b, seed=seed) if keys else None
    return Comparison(mcnemar(solved_a, solved_b), difference, len(verdicts_a.keys() | verdicts_b.keys()) - len(keys))


def _success_rate(hops: int | None, scores: Sequence[Score]) -> SuccessRate:
    invalid = sum(score.verdict is Outcome.INVALID for score in scores)
    successes = sum(score.verdict is Outcome.SUCCESS for score in scores)
    judged = len(scores) - invalid
    low, high = wilson(successes, judged)
    return SuccessRate(hops, len(scores), invalid, successes, successes / judged if judged else None, low, high)


def _verdicts(judged: Iterable[Judged]) -> dict[str, bool | None]:
    """Success by task key, None for an invalid attempt."""
    verdicts: dict[str, bool | None] = {}
    for task, score in judged:
        if task.key in verdicts:
            raise ValueError(f"task {task.key} stands twice among the trajectories of one policy")
        verdicts[task.key] = None if score.verdict is Outcome.INVALID else score.verdict is Outcome.SUCCESS
    return verdicts
