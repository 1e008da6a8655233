"""Dates: read in many forms, compared at a granularity, and nothing taken for one that is none or two."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.graders.dates import Date, Granularity, read_date, same_date


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1999", Date(1999)),
        (" In 1999. ", Date(1999)),
        ("44 BC", Date(-44)),
        ("AD 44", Date(44)),
        ("1999-07", Date(1999, 7)),
        ("July of 1999", Date(1999, 7)),
        ("sept. 1999", Date(1999, 9)),
        ("1999/7/20", Date(1999, 7, 20)),
        ("20/07/1999", Date(1999, 7, 20)),
        ("07.20.1999", Date(1999, 7, 20)),
        ("05/05/1999", Date(1999, 5, 5)),
        ("01/02/1999", None),
        ("the 20th of July, 1999", Date(1999, 7, 20)),
        ("Tuesday, July 20th, 1999", Date(1999, 7, 20)),
        ("Monday, July 20th, 1999", None),
        ("29 February 1900", None),
        ("29 February 5 BC", Date(-5, 2, 29)),
        ("29 February 4 BC", None),
        ("may 5", None),
        ("1999 or 2000", None),
        ("0", None),
        ("", None),
    ],
)
def test_dates_are_read(text: str, expected: Date | None) -> None:
    assert read_date(text) == expected


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
