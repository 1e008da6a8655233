"""`math` on what math-verify and lighteval expect of themselves: most of what is right is taken, nothing that is wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from eval.graders.mathematics import Extraction
from tests.eval.graders.math_cases import CASES, SUITES, Case, positives, taken

LEAST = 0.85
"""The share of the right cases that must be taken where the last expression is read."""


def told(cases: list[Case]) -> str:
    return "\n".join(f"{case['suite']} {case['test']}: {case['gold'][-80:]!r} <- {case['pred'][-80:]!r}" for case in cases)


def test_the_cases_are_of_both_suites_and_sorts() -> None:
    assert SUITES == ["lighteval", "math-verify"]
    assert all(set(case["reads"]) <= {"expression", "latex"} and case["reads"] for case in CASES)
    right = Counter(case["suite"] for case in CASES if case["right"])
    assert right == {"lighteval": 187, "math-verify": 221}
    assert len({(case["suite"], case["gold"], case["pred"], case["right"]) for case in CASES}) == len(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_most_right_cases_are_taken(suite: str) -> None:
    refused, right = positives(suite, Extraction.LAST)
    print(told(refused))
    assert 1 - len(refused) / right >= LEAST, told(refused)


@pytest.mark.slow
def test_every_right_case_that_is_refused_says_why() -> None:
    refused = [case for suite in SUITES for case in positives(suite, Extraction.LAST)[0]]
    marked = [case for case in CASES if "refused" in case]
    assert told(sorted(refused, key=CASES.index)) == told(marked)
    assert all(case["right"] and case["refused"] for case in marked)


@pytest.mark.slow
@pytest.mark.parametrize("extraction", Extraction)
def test_no_wrong_case_is_taken(extraction: Extraction) -> None:
    """But for an interval beside the inequality that it is, which math-verify takes one way round."""
    wrong = [case for case, passed in zip(CASES, taken(extraction), strict=True) if passed and not case["right"]]
    assert [case for case in wrong if "taken" not in case] == []
    assert len([case for case in CASES if "taken" in case]) == 1
