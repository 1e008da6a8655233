"""Two policies on the same tasks, and what so many tasks can show at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import binomtest

from eval.statistics import detectable_difference
from eval.suites.figures import Trial, compare


def once(verdicts: Sequence[bool | None]) -> list[Trial]:
    return [Trial(str(number), verdict) for number, verdict in enumerate(verdicts)]


def test_one_attempt_each_is_tested_by_mcnemar() -> None:
    found = compare(once([True] * 2 + [False] * 18), once([True] * 1 + [False] * 1 + [True] * 12 + [False] * 6))
    assert found is not None and found.test is not None
    assert (found.tasks, found.before, found.after) == (20, 0.1, 0.65)
    assert found.test.p_value == pytest.approx(binomtest(1, 13).pvalue)
    assert found.real and found.statement.startswith("the difference is real: +55.0 points")


def test_tasks_judged_on_one_side_alone_take_no_part() -> None:
    found = compare(once([True, None, False]), once([None, True, True]))
    assert found is not None and (found.tasks, found.difference.value) == (1, 1.0)
    assert compare(once([True, None]), once([None, True])) is None


def test_several_attempts_are_tested_by_the_signs_of_the_tasks_differences() -> None:
    old = [Trial(str(task), sample < 1, sample=sample) for task in range(30) for sample in range(4)]
    new = [Trial(str(task), sample < 1 + task % 2, sample=sample) for task in range(30) for sample in range(4)]
    found = compare(old, new)
    assert found is not None and found.difference.value == pytest.approx(0.125)
    assert found.real and "sign flips, p = 0.0002" in found.statement
    same = compare(old, old)
    assert same is not None and not same.real


@pytest.mark.parametrize(("tasks", "discordant"), [(1000, 0.5), (300, 0.3)])
def test_the_detectable_difference_is_found_as_often_as_it_says(tasks: int, discordant: float) -> None:
    difference = detectable_difference(tasks, discordant)
    assert difference is not None
    generator = np.random.default_rng(0)
    shares = [(discordant - difference) / 2, (discordant + difference) / 2, 1 - discordant]
    drawn = generator.multinomial(tasks, shares, size=400)
    found = np.mean([binomtest(int(a), int(a + b)).pvalue < 0.05 for a, b, _ in drawn])
    assert found == pytest.approx(0.8, abs=0.06)
