"""Numbers in answers: the final number of a worked solution by the rule of GSM8K, and a single number with a tolerance.

The final number is the first one after the last marker (`####`, `A:` or «answer is»), else the last number of the text. Numbers are
decimal, in ASCII or full-width digits, with an optional sign («minus 3» too), thousands separators, a currency sign, an exponent, a scale
(«3 million», $3k) and a percent sign, which divides by 100.

What only looks like an answer is none: a number that is a part of something larger (1/2, 10^2, 10:30, 1.2.3, 5-3, 10²), one of
several side by side («16, 17 or 18»), one that is changed by what stands beside it («not 18», «at least 18», «half of 18», 18!, see
`eval.graders.number_contexts`), one of more than 1,000 digits, and all that stands in a text with several answer tags. Where the rule
meets one of these there is no number, and it does not go on looking.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from eval.graders.final_answer import several_answers
from eval.graders.number_contexts import changed
from eval.graders.text import plain, spaced, unwrapped
from eval.graders.units import same_unit

LONGEST = 1_000
"""Digits of a number at most."""

_MARKER = re.compile(r"####|\bA:|\b(?i:answer is)\b")
_SCALES: Mapping[str, int] = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_LETTERS: Mapping[str, int] = {"k": 3, "K": 3, "M": 6, "B": 9, "bn": 9, "tn": 12}
_SPACES = " \u00a0\u2009\u202f"
_GROUPED = rf"[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])|[0-9]{{1,3}}(?:[{_SPACES}][0-9]{{3}})+(?![{_SPACES}]?[0-9])"
_DIGITS = rf"(?:{_GROUPED}|[0-9]+)(?:\.[0-9]+)?|(?<!\.)\.[0-9]+"
_MINUS = "-−–‐‑‒﹣－"
_RAISED = "²³¹¼-¾⁰-₟⅐-↏①-⓿"
"""Characters that are numbers and no digits: powers, indices, fractions."""
_NUMBER = re.compile(
    rf"""(?<![\w{_RAISED}])(?<!\d\.)                     # not the tail of a word, of another number or of a version
    (?P<sign>[{_MINUS}+]|(?i:\b(?:minus|negative)\s+))?(?:[$€£]\s?)?(?P<late_sign>[{_MINUS}]?)
    (?P<digits>{_DIGITS})(?P<exponent>[eE][+-]?[0-9]{{1,3}})?
    (?:(?P<letter>{"|".join(_LETTERS)})(?![^\W_]))?
    (?:\s(?P<scale>(?i:{"|".join(_SCALES)}))\b)?
    (?P<trailing>[\d{_RAISED}]|[eE][+-]?\d|\.\d)?""",
    re.VERBOSE,
)
_PERCENT = re.compile(r"\s*\\?%|\s+(?:per\s?cent|pct)\b(?!\s+points?)", re.IGNORECASE)
_JOINED = re.compile(
    rf"""\s*(?:\\?[{_MINUS}+/^*×÷·⋅∙|;,&~到至或和与與]|\*\*|\}}\s*\{{|\\(?:times|cdot|div|pm)
        |[,(]?\s*\b(?:or|and|to|vs|versus|maybe|perhaps|possibly|times|plus|minus|mod|over|x|by|divided\s+by|point|through
        |from|in|into|choose|out\s+of)\b)?
    (?:\s*\b(?:maybe|perhaps|possibly|even|else|just|minus|negative)\b)*\s*[{{(]?[{_MINUS}+$€£]{{0,2}}
    | [:'’_\u00ad\u200b-\u200f\u2060\ufeff]""",
    re.IGNORECASE | re.VERBOSE,
)
"""What makes one number of two where it is all that stands between them."""
_MIXED = re.compile(
    rf"(?P<minus>[{_MINUS}])?(?:(?P<whole>[0-9]{{1,9}})?\s?(?P<sign>[¼-¾⅐-⅞])|(?P<of>[0-9]{{1,9}})\s(?P<above>[0-9]{{1,4}})/(?P<below>[0-9]{{1,4}}))"
    r"(?P<unit>(?:\s?[A-Za-z%°][A-Za-z %°/]*)?\.?)"
)
_LATEX = re.compile(r"\$([^$]+)\$")
_LATE_MINUS = re.compile(rf"^[{_MINUS}]\s+(?=[$€£]?\.?[0-9])")
_UNIT_POWER = re.compile(r"(?<=[\s\d/])(?P<unit>[cdk]?m|ft|in|mi|yd)\^?\{?(?P<power>[23])\}?(?![\w^])")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a number may be from the right one: at most `absolute`, or `relative` times the right one, whichever is more."""

    absolute: Fraction = Fraction(0)
    relative: Fraction = Fraction(0)


def final_number(text: str) -> Decimal | None:
    """The final number of `text` by the rule above, None where there is none."""
    text = spaced(plain(text))
    if several_answers(text):
        return None
    numbers = list(_NUMBER.finditer(text))
    for marker in reversed(list(_MARKER.finditer(text))):
        after = next((place for place, number in enumerate(numbers) if number.start() >= marker.end()), None)
        if after is not None:
            return _in_percent(text, numbers, after)
    return _in_percent(text, numbers, len(numbers) - 1) if numbers else None


def same_number(prediction: str, gold: str) -> bool:
    """Whether both texts end on the same number. Raises ValueError where `gold` holds no number."""
    right = final_number(gold)
    if right is None:
        raise ValueError("the gold holds no number")
    return final_number(prediction) == right


def measure(text: str) -> tuple[Fraction, str] | None:
    """The number that all of `text` is, and its unit as written (empty where there is none); None where it is anything else."""
    text = _plainly(unwrapped(spaced(plain(text))))
    if mixed := _MIXED.fullmatch(text):
        return _of_mixed(mixed)
    found = list(_NUMBER.finditer(text))
    if len(found) == 2:
        return _quotient(found[0], found[1], text)
    value = _standing_alone(text, found, 0) if len(found) == 1 else None
    if value is None:
        return None
    rest = text[_end(found[0]) :]
    if rest.endswith("..") or (rest.startswith(".") and found[0]["digits"].startswith(".")):
        return None
    currency = "".join(sign for sign in "$€£" if sign in found[0][0])
    unit = " ".join(f"{currency} {text[: found[0].start()]} {rest}".rstrip(". ").split())
    return None if re.search(r"[0-9;|]|\bor\b|\band\b", unit, re.IGNORECASE) else (Fraction(value), unit)


def close_number(prediction: str, gold: str, tolerance: Tolerance = Tolerance()) -> bool:
    """Whether `prediction` is one number, within `tolerance` of the gold's, in the gold's unit or without one.

    Raises ValueError where `gold` is not one number.
    """
    right, given = measure(gold), measure(prediction)
    if right is None:
        raise ValueError("the gold is not one number")
    if given is None or (given[1] and not same_unit(given[1], right[1])):
        return False
    return abs(given[0] - right[0]) <= max(tolerance.absolute, tolerance.relative * abs(right[0]))


def _standing_alone(text: str, numbers: list[re.Match[str]], place: int) -> Decimal | None:
    """The number at `place`, None where it is part of something larger, denied, a bound, or joined to a neighbour."""
    number = numbers[place]
    before = text[_end(numbers[place - 1]) : number.start("digits")] if place else None
    after = text[_end(number) : numbers[place + 1].start("digits")] if place + 1 < len(numbers) else None
    if number["trailing"] or any(between is not None and _JOINED.fullmatch(between) for between in (before, after)):
        return None
    return None if changed(text[: number.start()], text[_end(number) :]) else _value(number)


def _in_percent(text: str, numbers: list[re.Match[str]], place: int) -> Decimal | None:
    """The number at `place`, a hundredth of it before a percent sign."""
    value = _standing_alone(text, numbers, place)
    return value if value is None or not _PERCENT.match(text, _end(numbers[place])) else _shifted(value, -2)


def _value(match: re.Match[str]) -> Decimal | None:
    if len(match["digits"]) > LONGEST:
        return None
    if match["sign"] is not None and match["late_sign"]:
        return None
    negative = match["sign"] not in (None, "+") or bool(match["late_sign"])
    value = Decimal(re.sub(rf"[,{_SPACES}]", "", match["digits"]) + (match["exponent"] or ""))
    scale = _SCALES.get((match["scale"] or "").lower(), 0) + _LETTERS.get(match["letter"] or "", 0)
    return _shifted(value.copy_negate() if negative else value, scale)


def _shifted(value: Decimal, places: int) -> Decimal:
    """`value` times a power of ten: put together rather than multiplied, for arithmetic on decimals rounds to 28 digits."""
    sign, digits, exponent = value.as_tuple()
    return Decimal((sign, digits, int(exponent) + places))


def _plainly(text: str) -> str:
    """`text` without dollar signs of LaTeX around it, its minus at the figures, powers of units as raised figures."""
    inner = _LATEX.fullmatch(text)
    text = _LATE_MINUS.sub("-", inner[1].strip() if inner else text)
    return _UNIT_POWER.sub(lambda power: power["unit"] + ("²" if power["power"] == "2" else "³"), text)


def _of_mixed(mixed: re.Match[str]) -> tuple[Fraction, str] | None:
    """The value of `1 1/2`, `1½` or `½`, and its unit."""
    sign = unicodedata.normalize("NFKC", mixed["sign"] or f"{mixed['above']}/{mixed['below']}").replace("\u2044", "/")
    above, below = map(int, sign.split("/"))
    if not 0 < above < below:
        return None
    value = int(mixed["whole"] or mixed["of"] or 0) + Fraction(above, below)
    return (-value if mixed["minus"] else value), " ".join(mixed["unit"].rstrip(". ").split())


def _quotient(above: re.Match[str], below: re.Match[str], text: str) -> tuple[Fraction, str] | None:
    """The value of a text that is a fraction, two numbers and a slash; None for anything else."""
    numerator, denominator = _value(above), _value(below)
    apart = (text[: above.start()].strip(), text[_end(above) : below.start()].strip(), text[_end(below) :].strip(" .\n"))
    if above["trailing"] or below["trailing"] or apart != ("", "/", "") or numerator is None or not denominator:
        return None
    return Fraction(numerator) / Fraction(denominator), ""


def _end(match: re.Match[str]) -> int:
    """The end of the number itself, without the `trailing` characters that make it part of something larger."""
    return match.start("trailing") if match["trailing"] else match.end()
