"""What turns the nightly demo red: a quickstart that is half as good or half as fast as the one that README.md tells of."""

from __future__ import annotations

import pytest

from benchmarks.demo_threshold import FASTEST_SECONDS, THRESHOLDS, too_low, too_slow
from benchmarks.evidence import load

DOCUMENTED = {("held_out", 1, "cpt"): 0.518, ("held_out", 1, "rl"): 0.643, ("held_out", 2, "rl"): 0.663}


def test_the_demo_of_the_readme_passes() -> None:
    assert DOCUMENTED.keys() == THRESHOLDS.keys() and too_low(DOCUMENTED) == []
    assert not too_slow(FASTEST_SECONDS)
    fastest = min(day["seconds"]["demo"] for day in load("first_minutes")["days"] if "demo" in day["seconds"])
    assert FASTEST_SECONDS < fastest < 1.2 * FASTEST_SECONDS, "what README tells of has the time between stages in it"


@pytest.mark.parametrize("key", THRESHOLDS)
def test_a_policy_half_as_good_or_not_tried_is_too_low(key: tuple[str, int, str]) -> None:
    assert too_low(DOCUMENTED | {key: DOCUMENTED[key] / 2}) == [key]
    assert too_low({each: success for each, success in DOCUMENTED.items() if each != key}) == [key]


def test_half_the_speed_is_too_slow() -> None:
    assert too_slow(2 * FASTEST_SECONDS)
