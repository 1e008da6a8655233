"""Intervals and tests against scipy, known values and their own definitions."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.statistics import (
    Interval,
    bootstrap_difference,
    bootstrap_mean,
    mcnemar,
    paired_test,
    pass_at_k,
    pass_hat_k,
    student_mean,
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
        with pytest.raises(ValueError, match="do not make pairs"):
            paired_test(wrong, [1.0] * (1 if wrong else 0))


@given(st.lists(st.booleans(), min_size=1, max_size=8).flatmap(lambda runs: st.tuples(st.just(runs), st.integers(1, len(runs)))))
def test_pass_estimates_equal_the_mean_over_all_choices(drawn: tuple[list[bool], int]) -> None:
    runs, k = drawn
    choices = list(combinations(runs, k))
    assert pass_at_k(len(runs), sum(runs), k) == pytest.approx(sum(any(choice) for choice in choices) / len(choices))
    assert pass_hat_k(len(runs), sum(runs), k) == pytest.approx(sum(all(choice) for choice in choices) / len(choices))
