"""Dates in answers: parsed as days, months or years, and compared at the granularity of the right one.

Read are dates with the year first (1999, 1999-07, 1999/07/20, 1999.07.20), English words («20 July 1999», «July 20th, 1999», «July 1999», a
weekday before them), 44 BC, and numeric dates whose order leaves no doubt (20/07/1999). 01/02/1999 is none, for it is two dates.
The whole text is the date. A weekday must be the day's own.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from enum import StrEnum

_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_name) if name}
_SHORT = {name[:3]: number for name, number in _MONTHS.items()} | {"sept": 9}
_DAYS = [name.lower() for name in calendar.day_name]
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)}|(?:{'|'.join(_SHORT)})\.?)"
_DAY = r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>[0-9]{3,4}|[0-9]{1,2}(?=\s(?:bc|ad|ce)))(?:\s(?P<era>bce?|ad|ce)\.?)?"
_WEEKDAY = rf"(?:(?:on\s)?(?P<weekday>{'|'.join(_DAYS)}),?\s)?"
_FORMS = [
    re.compile(pattern)
    for pattern in (
        rf"(?:in\s)?{_YEAR}",
        r"(?P<year>[0-9]{4})(?P<mark>[-/.])(?P<month>[0-9]{1,2})(?:(?P=mark)(?P<day>[0-9]{1,2}))?",
        rf"{_WEEKDAY}(?:the\s)?{_DAY}\s(?:of\s)?{_MONTH},?\s{_YEAR}",
        rf"{_WEEKDAY}{_MONTH}\s(?:the\s)?{_DAY},?\s{_YEAR}",
        rf"(?:in\s)?{_MONTH},?\s(?:of\s)?{_YEAR}",
        r"(?P<first>[0-9]{1,2})(?P<mark>[-/.])(?P<second>[0-9]{1,2})(?P=mark)(?P<year>[0-9]{4})",
    )
]
LONGEST = 60
"""Characters of a date at most."""


class Granularity(StrEnum):
    """The precision of a date, or of a comparison."""

    YEAR = "year"
    MONTH = "month"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Date:
    """A year (-44 is 44 BC), with a month and a day where they are known."""

    year: int
    month: int | None = None
    day: int | None = None

    @property
    def granularity(self) -> Granularity:
        """The precision to which it is known."""
        return Granularity.YEAR if self.month is None else Granularity.MONTH if self.day is None else Granularity.DAY

    def at(self, granularity: Granularity) -> Date | None:
        """The date reduced to `granularity`, None where it is less precise than that."""
        parts = (self.year, self.month, self.day)[: list(Granularity).index(granularity) + 1]
        return None if None in parts else Date(*(part for part in parts if part is not None))


def read_date(text: str) -> Date | None:
    """The date that all of `text` is, or None where it is none, or more than one."""
    plain = " ".join(text.lower().split()).rstrip(".")
    if len(plain) > LONGEST or not plain.isascii():
        return None
    found = next((match for form in _FORMS if (match := form.fullmatch(plain))), None)
    return None if found is None else _date(found.groupdict())


def same_date(prediction: str, gold: str, granularity: Granularity | None = None) -> bool:
    """Whether both texts are the same date at `granularity`, without one at the gold's own; a less exact prediction is not.

    Raises ValueError where `gold` is no date, or not known so exactly.
    """
    right, given = read_date(gold), read_date(prediction)
    if right is None:
        raise ValueError("the gold is no date")
    compared = granularity or right.granularity
    if right.at(compared) is None:
        raise ValueError(f"the gold names no {compared}")
    return given is not None and given.at(compared) == right.at(compared)


def _date(parts: dict[str, str | None]) -> Date | None:
    year = int(parts["year"] or 0) * (-1 if (parts.get("era") or "").startswith("b") else 1)
    month, day = _month_and_day(parts)
    if not year or (month is not None and not 1 <= month <= 12):
        return None
    if day is not None and not 1 <= day <= _days_in(year, month or 1):
        return None
    weekday = parts.get("weekday")
    if weekday and (year < 1 or _DAYS[calendar.weekday(year, month or 1, day or 1)] != weekday):
        return None
    return Date(year, month, day)


def _month_and_day(parts: dict[str, str | None]) -> tuple[int | None, int | None]:
    """Month and day; month 0 where their order is ambiguous."""
    if (first := parts.get("first")) and (second := parts.get("second")):
        low, high = sorted((int(first), int(second)))
        return (low, high) if high > 12 or low == high else (0, None)
    month, day = parts.get("month"), parts.get("day")
    number = None if month is None else int(month) if month.isdigit() else _MONTHS.get(month) or _SHORT[month.rstrip(".")]
    return number, int(day) if day else None


def _days_in(year: int, month: int) -> int:
    # Leap years before Christ as astronomers count them: 1 BC is the year 0, and leaps.
    return calendar.monthrange(year if year > 0 else 2000 + (year + 1) % 4, month)[1]
