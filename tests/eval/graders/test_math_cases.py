"""`math` on what math-verify and lighteval expect of themselves: what is right is taken, or the file says why not; nothing wrong is."""

from __future__ import annotations

import pytest

from eval.graders.mathematics import Extraction
from tests.eval.graders.math_cases import CASES, SUITES, taken

LEAST = 0.85
"""The share of the right cases that must be taken where the last expression is read."""
SAMPLED = pytest.mark.parametrize("every", [pytest.param(12, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
"""One case in twelve, and all of them."""


def told(case: dict[str, str]) -> str:
    return f"{case['suite']} {case['test']}: {case['gold'][-80:]!r} <- {case['pred'][-80:]!r}"


@SAMPLED
def test_every_right_case_is_taken_or_says_why_not(every: int) -> None:
    right = [(case, passed) for case, passed in zip(CASES[::every], taken(Extraction.LAST, every), strict=True) if case["right"]]
    assert [told(case) for case, passed in right if not passed] == [told(case) for case, _ in right if "refused" in case]
    for suite in SUITES:
        marked = ["refused" in case for case in CASES if case["right"] and case["suite"] == suite]
        assert 1 - sum(marked) / len(marked) >= LEAST


@SAMPLED
@pytest.mark.parametrize("extraction", Extraction)
def test_no_wrong_case_is_taken(extraction: Extraction, every: int) -> None:
    """Except for an interval and its inequality, which math-verify takes in one direction."""
    wrong = [case for case, passed in zip(CASES[::every], taken(extraction, every), strict=True) if passed and not case["right"]]
    assert [case for case in wrong if "taken" not in case] == []
    assert len([case for case in CASES if "taken" in case]) == 1
