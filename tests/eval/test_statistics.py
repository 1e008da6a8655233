"""Intervals and tests against scipy, known values and their own definitions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from eval.statistics import (
    Interval,
    bootstrap_difference,
    bootstrap_mean,
    detectable_difference,
    holm,
    mcnemar,
    paired_test,
    student_mean,
    student_p,
    wilson,
)


def test_wilson_at_its_ends() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert wilson(10, 10)[1] == 1.0
    with pytest.raises(ValueError, match="11 successes of 10"):
        wilson(11, 10)


def test_a_mean_over_seeds_has_students_interval_and_one_seed_has_none() -> None:
    """t(0.975, 2) = 4.3027, of the usual table."""
    interval = student_mean([0.5, 0.6, 0.7])
    assert interval.value == pytest.approx(0.6)
    assert (interval.low, interval.high) == pytest.approx((0.6 - 4.3027 * 0.1 / 3**0.5, 0.6 + 4.3027 * 0.1 / 3**0.5), abs=1e-5)
    assert student_mean([0.5]) == Interval(0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="no values"):
        student_mean([])


def test_students_p_value_is_that_of_its_interval() -> None:
    """t = 6 / sqrt(3) = 3.4641 at 2 degrees of freedom: p = 0.0742, of the usual table."""
    assert student_p([0.1, 0.2, 0.3]) == pytest.approx(0.0742, abs=1e-4)
    assert student_mean([0.1, 0.2, 0.3], 1 - student_p([0.1, 0.2, 0.3])).low == pytest.approx(0.0, abs=1e-9)
    assert student_p([0.1]) == student_p([]) == student_p([0.0, 0.0]) == 1.0 and student_p([0.1, 0.1]) == 0.0


def test_p_values_are_adjusted_for_their_number() -> None:
    """Holm's own example: sorted 0.01, 0.02, 0.03 times 4, 3, 2, each at least the one before."""
    assert holm([0.03, 0.01, 0.02, 0.5]) == pytest.approx([0.06, 0.04, 0.06, 0.5])
    assert holm([0.6, 0.9]) == [1.0, 1.0] and holm([]) == []


def test_paired_bootstrap_uses_the_pairs() -> None:
    generator = np.random.default_rng(0)
    a = generator.normal(size=200)
    interval = bootstrap_difference(a.tolist(), (a + 0.1).tolist(), resamples=500)
    assert (interval.low, interval.high) == pytest.approx((0.1, 0.1))
    with pytest.raises(ValueError, match="longer than"):
        bootstrap_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="no values"):
        bootstrap_mean([])


def test_mcnemar() -> None:
    test = mcnemar([True] * 5 + [False] * 15 + [True] * 3 + [False] * 7, [True] * 5 + [True] * 15 + [False] * 3 + [False] * 7)
    assert (test.both, test.only_a, test.only_b, test.neither, test.tasks) == (5, 3, 15, 7, 30)
    assert test.p_value == pytest.approx(0.00754, abs=1e-5)
    assert test.difference == pytest.approx(0.4)
    assert mcnemar([], []).p_value == 1.0
    assert mcnemar([True], [True]).p_value == 1.0
    with pytest.raises(ValueError, match="shorter than"):
        mcnemar([True], [])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=10))
def test_the_sign_flip_test_tries_every_way_to_turn_the_tasks_differences(pairs: list[tuple[int, int]]) -> None:
    a, b = [left / 4 for left, _ in pairs], [right / 4 for _, right in pairs]
    differences = [right - left for left, right in pairs]
    turned = [abs(sum(sign * each for sign, each in zip(signs, differences, strict=True))) for signs in product((1, -1), repeat=len(pairs))]
    as_far = sum(each >= abs(sum(differences)) for each in turned) / len(turned)
    test = paired_test(a, b)
    assert test.p_value == pytest.approx(as_far) and test.difference == pytest.approx(sum(differences) / 4 / len(pairs))
    assert (test.tasks, test.after - test.before) == (len(pairs), pytest.approx(test.difference))


def test_shares_of_one_attempt_are_tested_by_mcnemar_and_many_tasks_by_a_sample_of_ways() -> None:
    assert paired_test([1, 0, 0], [1, 1, 0]) == mcnemar([True, False, False], [True, True, False])
    many = paired_test([0.5] * 40, [0.75] * 40)
    assert many == paired_test([0.5] * 40, [0.75] * 40) and many.p_value == pytest.approx(2e-4) and many.name == "sign flips"
    for wrong in ([], [1.0, 0.5]):
        with pytest.raises(ValueError, match="cannot be paired"):
            paired_test(wrong, [1.0] * (1 if wrong else 0))


@pytest.mark.parametrize(("tasks", "discordant"), [(1000, 0.5), (300, 0.3)])
def test_the_detectable_difference_is_found_as_often_as_it_says(tasks: int, discordant: float) -> None:
    difference = detectable_difference(tasks, discordant)
    assert difference is not None
    generator = np.random.default_rng(0)
    shares = [(discordant - difference) / 2, (discordant + difference) / 2, 1 - discordant]
    drawn = generator.multinomial(tasks, shares, size=400)
    found = np.mean([binomtest(int(a), int(a + b)).pvalue < 0.05 for a, b, _ in drawn])
    assert found == pytest.approx(0.8, abs=0.06)
