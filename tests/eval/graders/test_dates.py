"""Dates: read in many forms, compared at a granularity, and nothing taken for one that is none or two."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.graders.dates import Granularity, same_date


@given(st.dates(min_value=date(1000, 1, 1)))
def test_every_way_of_writing_a_day_is_the_same_day(day: date) -> None:
    for form in ("%Y-%m-%d", "%d %B %Y", "%B %d, %Y", "%A, %d %b %Y", "%Y/%m/%d"):
        assert same_date(day.strftime(form), day.isoformat())


def test_the_gold_says_how_exactly() -> None:
    assert same_date("20 July 1969", "1969")
    assert not same_date("1969", "20 July 1969")
    assert same_date("20 July 1969", "1 July 1969", Granularity.MONTH)
    with pytest.raises(ValueError, match="names no day"):
        same_date("20 July 1969", "1969", Granularity.DAY)
    with pytest.raises(ValueError, match="no date"):
        same_date("1969", "the sixties")
