"""Thresholds of the nightly demo: a quickstart half as good or half as fast as the documented one fails."""

from __future__ import annotations

import pytest

from benchmarks.demo_threshold import FIRST, SECOND, THRESHOLDS, kept_rounds, too_low, too_slow
from benchmarks.evidence import load
from benchmarks.evidence_tables import success

QUICKSTART = load("quickstart")
DOCUMENTED = {(suite, turn, stage): float(success(QUICKSTART, f"t{turn}-{stage}", suite)) / 100 for suite, turn, stage in THRESHOLDS}


def test_the_documented_demo_passes() -> None:
    assert DOCUMENTED.keys() == THRESHOLDS.keys() and too_low(DOCUMENTED) == []
    assert kept_rounds() and not any(map(too_slow, kept_rounds()))


@pytest.mark.parametrize("key", THRESHOLDS)
def test_a_policy_half_as_good_or_not_tried_is_too_low(key: tuple[str, int, str]) -> None:
    assert too_low(DOCUMENTED | {key: DOCUMENTED[key] / 2}) == [key]
    assert too_low({each: success for each, success in DOCUMENTED.items() if each != key}) == [key]


def test_a_second_iteration_below_the_first_is_too_low() -> None:
    assert too_low(DOCUMENTED | {FIRST: DOCUMENTED[SECOND] + 0.01}) == [SECOND]
    assert too_low(DOCUMENTED | {FIRST: DOCUMENTED[SECOND]}) == []
