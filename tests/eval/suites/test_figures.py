"""Figures of a suite against counting by hand, enumeration and simulation."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from eval.graders.choice import verifiers_of
from eval.statistics import wilson
from eval.suites.figures import Trial, at_k, compare, coverage, success
from flows.suites.results import read_trials
from tests.eval.graders.test_verifiers import attempt
from warehouse import Lake, Outcome, Score, Task


def tried(task: str, *verdicts: bool | None, answers: str = "") -> list[Trial]:
    names = answers or "".join("x" if verdict else "y" for verdict in verdicts)
    return [Trial(task, verdict, name, sample) for sample, (verdict, name) in enumerate(zip(verdicts, names, strict=True))]


def once(*verdicts: bool | None) -> list[Trial]:
    return [Trial(str(number), verdict) for number, verdict in enumerate(verdicts)]


SEVERAL = [*tried("a", True, False, True, False), *tried("b", False, False, False, False), *tried("c", True, True, None, True)]


def test_coverage_tells_judged_invalid_and_missing() -> None:
    found = coverage(SEVERAL, tasks=4, samples=4)
    assert (found.wanted, found.judged, found.invalid, found.missing) == (16, 11, 1, 4)
    assert "4 of 16" in str(found.objection) and "1 of 12 attempts (8.3 %)" in str(coverage(SEVERAL, 3, 4).objection)
    assert coverage([], 0, 1).objection == "the suite has no tasks"


@pytest.mark.parametrize(("invalid", "is_result"), [(2, True), (3, False)])
def test_more_than_two_percent_invalid_gives_no_result(invalid: int, is_result: bool) -> None:
    trials = once(*[None] * invalid, *[True] * (100 - invalid))
    assert (coverage(trials, 100, 1).objection is None) is is_result


def test_one_attempt_a_task_has_wilsons_interval() -> None:
    figure = success(once(*[True] * 3, *[False] * 7))
    assert figure.estimate is not None
    assert (figure.estimate.value, figure.tasks) == (0.3, 10)
    assert (figure.estimate.low, figure.estimate.high) == pytest.approx(wilson(3, 10))


def test_several_attempts_of_one_task_count_as_one_for_the_interval() -> None:
    trials = [trial for number in range(10) for trial in tried(str(number), *[number < 3] * 50)]
    figure = success(trials)
    assert figure.estimate is not None and figure.estimate.value == 0.3
    assert figure.estimate.low <= 0.1 and figure.estimate.high >= 0.5


def test_one_attempt_each_is_tested_by_mcnemar() -> None:
    found = compare(once(*[True] * 2, *[False] * 18), once(True, False, *[True] * 12, *[False] * 6))
    assert found is not None and found.test is not None
    assert (found.tasks, found.before, found.after) == (20, 0.1, 0.65)
    assert found.test.p_value == pytest.approx(binomtest(1, 13).pvalue)
    assert found.real and found.statement.startswith("the difference is real: +55.0 points")


def test_tasks_judged_on_one_side_alone_take_no_part() -> None:
    found = compare(once(True, None, False), once(None, True, True))
    assert found is not None and (found.tasks, found.difference.value) == (1, 1.0)
    assert compare(once(True, None), once(None, True)) is None


def test_several_attempts_are_tested_by_the_signs_of_the_tasks_differences() -> None:
    old = [Trial(str(task), sample < 1, sample=sample) for task in range(30) for sample in range(4)]
    new = [Trial(str(task), sample < 1 + task % 2, sample=sample) for task in range(30) for sample in range(4)]
    found = compare(old, new)
    assert found is not None and found.difference.value == pytest.approx(0.125)
    assert found.real and "sign flips, p = 0.0002" in found.statement
    same = compare(old, old)
    assert same is not None and not same.real


@pytest.mark.parametrize(("before", "after", "expected"), [(True, True, (-0.161, 0.161)), (False, True, (0.678, 1.0))])
def test_policies_that_differ_alike_on_all_tasks_are_compared_without_certainty(
    before: bool, after: bool, expected: tuple[float, float]
) -> None:
    found = compare(once(*[before] * 20), once(*[after] * 20))
    assert found is not None and found.difference.value == after - before
    assert (found.difference.low, found.difference.high) == pytest.approx(expected, abs=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=7), min_size=1, max_size=4), st.integers(1, 5))
def test_figures_at_k_equal_enumeration(drawn: list[list[bool]], k: int) -> None:
    trials = [trial for number, verdicts in enumerate(drawn) for trial in tried(str(number), *verdicts)]
    for kind, rule in (("pass@", any), ("pass^", all)):
        expected = [sum(map(rule, combinations(verdicts, k))) / len(list(combinations(verdicts, k))) for verdicts in drawn]
        figure = at_k(trials, kind, k)
        assert figure.estimate is not None
        assert figure.estimate.value == pytest.approx(sum(expected) / len(expected))


@pytest.mark.parametrize(("hard", "is_result"), [(2, True), (3, False), (16, False)])
def test_too_many_tasks_with_too_few_judged_attempts_give_no_result(hard: int, is_result: bool) -> None:
    trials = [trial for n in range(100) for trial in tried(str(n), *[n >= hard] * 7, None if n < hard else True)]
    for kind in ("pass@", "pass^", "majority@"):
        figure = at_k(trials, kind, 8)
        assert (figure.tasks, figure.estimate is not None) == (100 - hard, is_result)
        assert at_k(trials, kind, 7).estimate is not None


@pytest.mark.slow
@pytest.mark.parametrize(("named", "default"), [("gsm8k", "qa_em"), (None, "gsm8k")])
def test_majority_counts_answers_that_the_grader_of_the_task_reads_as_the_same(named: str | None, default: str, tmp_path: Path) -> None:
    task = Task("t1", "python", "How much?", ("18",), provenance={"verifier": named} if named else {})
    answers = {"18 dollars": True, "She makes $18.": True, "9*2=18": True, "17": False, "17 ": False}
    runs = [replace(attempt("answer", text), id=text, sample=place, suite="sums") for place, text in enumerate(answers)]
    scores = [Score(text, "gsm8k", "5", float(right), Outcome.SUCCESS if right else Outcome.FAILURE) for text, right in answers.items()]
    with Lake(tmp_path) as lake:
        lake.add([task, *runs, *scores])
        figure = at_k(read_trials(lake, "p", "sums", verifiers_of(default)), "majority@", 5)
    assert figure.estimate is not None and figure.estimate.value == 1.0
