"""Dates in answers: parsed as days, months or years, and compared at the granularity of the accepted date.

Accepted are dates with the year first (1999, 1999-07, 1999/07/20, 19990720, 1999-07-20T00:00:00Z), English words ("20 July 1999",
20-Jul-1999, "on Tuesday, July 20th, 1999", "1999 July 20", "July 1999", "the year 1999"), also with a time ("Tue Jul 20 12:30:00 UTC
1999"), 44 BC and AD 1999, and numeric months and days in an unambiguous order (07/1999, 20/07/1999). 01/02/1999 is ambiguous, so it is no
date. The date must be the whole text, and a weekday must match.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from enum import StrEnum

from eval.graders.text import fold, unwrapped

_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_name) if name}
_SHORT = {name[:3]: number for name, number in _MONTHS.items()} | {"sept": 9}
_DAYS = [name.lower() for name in calendar.day_name]
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)}|(?:{'|'.join(_SHORT)})\.?)"
_DAY = r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th|\.)?"
_YEAR = r"(?:(?:ad|ce)\s(?P<counted>[0-9]{1,4})|(?P<year>[0-9]{3,4}|[0-9]{1,2}(?=\s?(?:bc|ad|ce)))(?:\s?(?P<era>bce?|ad|ce)\.?)?)"
_FULL_YEAR = r"(?P<year>[0-9]{4})"
_WEEKDAY = rf"(?:(?P<weekday>{'|'.join(f'{name[:3]}(?:{name[3:]}|s|rs|nes|r)?' for name in _DAYS)})[.,]?\s|(?:the\s))*"
_HOURS = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]+)?)?"
_ZONE = r"(?:z|utc|gmt|[+-][0-9]{2}:?[0-9]{2})"
_TIME = rf"(?:[t\s]{_HOURS}\s?{_ZONE}?|\s(?:0?[1-9]|1[0-2])(?::[0-5][0-9]){{0,2}}\s?[ap]\.?m)?"
_CLOCK = rf"(?:,?(?:\sat)?{_TIME})?"
_SEPARATOR = r"(?P<mark>[-/.])"
_LEADING = re.compile(r"^(?:on|in|during)\s")
_ERA = re.compile(r"\b(?:a\.\s?d|b\.\s?c(?:\.\s?e)?|c\.\s?e)\b\.?")
_FORMS = [
    re.compile(pattern)
    for pattern in (
        rf"(?:(?:the\s)?year\s(?:of\s)?)?{_YEAR}",
        rf"{_FULL_YEAR}{_SEPARATOR}(?P<month>[0-9]{{1,2}})(?:(?P=mark)(?P<day>[0-9]{{1,2}}){_TIME})?",
        rf"{_FULL_YEAR}(?P<month>[0-9]{{2}})(?P<day>[0-9]{{2}})",
        rf"{_WEEKDAY}{_DAY}\s(?:(?:day\s)?of\s)?{_MONTH},?\s(?:of\s)?{_YEAR}{_CLOCK}",
        rf"{_WEEKDAY}{_MONTH}\s?(?:the\s)?{_DAY}(?:,\s?|\s)(?:of\s)?{_YEAR}{_CLOCK}",
        rf"{_WEEKDAY}{_MONTH}\s{_DAY}\s{_HOURS}\s(?:{_ZONE}\s)?{_FULL_YEAR}",
        rf"{_FULL_YEAR},?\s{_MONTH}(?:\s{_DAY})?",
        rf"(?P<day>[0-9]{{1,2}})(?P<mark>[-/. ]?){_MONTH}(?P=mark){_FULL_YEAR}",
        rf"{_FULL_YEAR}(?P<mark>[-/.]){_MONTH}(?P=mark)(?P<day>[0-9]{{1,2}})",
        rf"{_MONTH}(?P<mark>[-/.])(?P<day>[0-9]{{1,2}})(?P=mark){_FULL_YEAR}",
        rf"(?:the\smonth\sof\s)?{_MONTH}(?:,?\s|-|/)(?:of\s)?{_YEAR}",
        rf"(?P<month>[0-9]{{1,2}})/{_FULL_YEAR}",
        rf"(?P<first>[0-9]{{1,2}}){_SEPARATOR}(?P<second>[0-9]{{1,2}})(?P=mark){_FULL_YEAR}{_TIME}",
    )
]
_BRACKETED = re.compile(r"\(([^()]*)\)|'([^']*)'")
LONGEST = 60
"""Maximum characters of a date."""


class Granularity(StrEnum):
    YEAR = "year"
    MONTH = "month"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Date:
    """A year (-44 is 44 BC), with month and day if known."""

    year: int
    month: int | None = None
    day: int | None = None

    @property
    def granularity(self) -> Granularity:
        return Granularity.YEAR if self.month is None else Granularity.MONTH if self.day is None else Granularity.DAY

    def at(self, granularity: Granularity) -> Date | None:
        """Reduce the date to `granularity`; None if it is less precise."""
        parts = (self.year, self.month, self.day)[: list(Granularity).index(granularity) + 1]
        return None if None in parts else Date(*(part for part in parts if part is not None))


def read_date(text: str) -> Date | None:
    """Parse a text that must be a date as a whole; None if it is not, or ambiguous."""
    whole = unwrapped(fold(text))
    if found := _BRACKETED.fullmatch(whole):
        whole = found[1] or found[2]
    plain = " ".join(whole.lower().split()).rstrip(".,")
    if len(plain) > LONGEST or not plain.isascii():
        return None
    plain = _ERA.sub(lambda era: re.sub(r"[.\s]", "", era[0]), _LEADING.sub("", plain))
    found = next((match for form in _FORMS if (match := form.fullmatch(plain))), None)
    return None if found is None else _date(found.groupdict())


def same_date(prediction: str, gold: str, granularity: Granularity | None = None) -> bool:
    """Return whether both texts are the same date at `granularity`, by default the gold's. A less precise prediction never is.

    Raises ValueError if `gold` is no date, or less precise.
    """
    right, given = read_date(gold), read_date(prediction)
    if right is None:
        raise ValueError("the gold is not a date")
    compared = granularity or right.granularity
    if right.at(compared) is None:
        raise ValueError(f"the gold has no {compared}")
    return given is not None and given.at(compared) == right.at(compared)


def _date(parts: dict[str, str | None]) -> Date | None:
    year = int(parts.get("year") or parts.get("counted") or 0) * (-1 if (parts.get("era") or "").startswith("b") else 1)
    month, day = _month_and_day(parts)
    if not year or (month is not None and not 1 <= month <= 12):
        return None
    if day is not None and not 1 <= day <= _days_in(year, month or 1):
        return None
    weekday = parts.get("weekday")
    if weekday and (year < 1 or not _DAYS[calendar.weekday(year, month or 1, day or 1)].startswith(weekday[:3])):
        return None
    return Date(year, month, day)


def _month_and_day(parts: dict[str, str | None]) -> tuple[int | None, int | None]:
    """Month and day; month 0 if their order is ambiguous."""
    if (first := parts.get("first")) and (second := parts.get("second")):
        low, high = sorted((int(first), int(second)))
        return (low, high) if high > 12 or low == high else (0, None)
    month, day = parts.get("month"), parts.get("day")
    number = None if month is None else int(month) if month.isdigit() else _MONTHS.get(month) or _SHORT[month.rstrip(".")]
    return number, int(day) if day else None


def _days_in(year: int, month: int) -> int:
    # Leap years before Christ follow astronomical years: 1 BC is the year 0, a leap year.
    return calendar.monthrange(year if year > 0 else 2000 + (year + 1) % 4, month)[1]
