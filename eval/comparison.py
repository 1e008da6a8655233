"""Two policies on the same tasks: by how much they differ, and whether that difference is real.

With one attempt a task on both sides the test is McNemar's, exact; else a bootstrap that resamples tasks in pairs. Tasks that only one of
the two was judged on take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.statistics import Interval, PairedTest, bootstrap_difference, mcnemar
from eval.trials import Trial, grouped, judged

LEVEL = 0.05
"""A difference is called real where so little or less would be seen by chance, or the 95 % interval leaves 0 out."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Success of both on `tasks` tasks, the difference with its 95 % interval, and McNemar's test where each task has one attempt."""

    tasks: int
    before: float
    after: float
    difference: Interval
    test: PairedTest | None

    @property
    def real(self) -> bool:
        """Whether the difference is more than chance would do."""
        if self.test is not None:
            return self.test.p_value < LEVEL
        return self.difference.low > 0 or self.difference.high < 0

    @property
    def statement(self) -> str:
        """The same in a sentence."""
        by = f"{100 * self.difference.value:+.1f} points ({100 * self.difference.low:+.1f} to {100 * self.difference.high:+.1f})"
        how = f"McNemar, exact, p = {self.test.p_value:.2g}" if self.test is not None else "paired bootstrap over tasks"
        verdict = "the difference is real" if self.real else "no difference is shown"
        return f"{verdict}: {by} on {self.tasks} tasks, {how}"


def compare(before: Sequence[Trial], after: Sequence[Trial]) -> Comparison | None:
    """`after` against `before`; None where no task was judged on both sides."""
    left, right = (grouped(judged(trials), lambda trial: trial.task) for trials in (before, after))
    both = sorted(left.keys() & right.keys())
    if not both:
        return None
    old, new = [_share(left[task]) for task in both], [_share(right[task]) for task in both]
    single = all(len(side[task]) == 1 for side in (left, right) for task in both)
    test = mcnemar([share == 1 for share in old], [share == 1 for share in new]) if single else None
    return Comparison(len(both), sum(old) / len(both), sum(new) / len(both), bootstrap_difference(old, new), test)


def _share(task: Sequence[Trial]) -> float:
    return sum(trial.success is True for trial in task) / len(task)
