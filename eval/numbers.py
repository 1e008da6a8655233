"""The final number of a worked solution, by the rule of GSM8K.

The number is the first one after the last marker (`####`, `A:` or «answer is»), else the last number of the text. Numbers
are decimal, with an optional sign, thousands separators, a currency sign and an exponent; they are compared exactly.
"""

from __future__ import annotations

import re
from decimal import Decimal

_MARKER = re.compile(r"####|\bA:|\b(?i:answer is)\b")
_NUMBER = re.compile(
    r"""(?<!\w)(?<!\d\.)                                  # not the tail of a word, of another number or of a version
    (?P<sign>[-\u2212+]?)(?:[$€£]\s?)?(?P<late_sign>[-\u2212]?)
    (?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|(?<!\.)\.\d+)
    (?P<exponent>[eE][+-]?\d{1,3})?(?!\d)""",
    re.VERBOSE,
)


def final_number(text: str) -> Decimal | None:
    """The number that `text` ends on by the rule above, or None where it holds none."""
    for marker in reversed(list(_MARKER.finditer(text))):
        after = _NUMBER.search(text, marker.end())
        if after is not None:
            return _value(after)
    numbers = list(_NUMBER.finditer(text))
    return _value(numbers[-1]) if numbers else None


def same_number(prediction: str, gold: str) -> bool:
    """Whether both texts end on the same number. Raises ValueError where `gold` holds no number."""
    right = final_number(gold)
    if right is None:
        raise ValueError("the gold holds no number")
    return final_number(prediction) == right


def _value(match: re.Match[str]) -> Decimal:
    negative = (match["sign"] in ("-", "\u2212")) != bool(match["late_sign"])
    value = Decimal(match["digits"].replace(",", "") + (match["exponent"] or ""))
    return -value if negative else value
