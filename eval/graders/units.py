"""Units of measure by what they mean: «$5» and «5 dollars», «5 km» and «5 kilometres» name the same, and a pound is money or a weight."""

from __future__ import annotations

import re

_SPELLINGS = {
    "%": "% percent pct",
    "$": "$ us$ usd dollar dollars buck bucks",
    "€": "€ eur euro euros",
    "£": "£ gbp pound pounds",
    "lb": "lb lbs pound pounds",
    "¢": "¢ cent cents",
    "km": "km kilometre kilometres kilometer kilometers",
    "m": "m metre metres meter meters",
    "cm": "cm centimetre centimetres centimeter centimeters",
    "mm": "mm millimetre millimetres millimeter millimeters",
    "mi": "mi mile miles",
    "yd": "yd yard yards",
    "ft": "ft foot feet",
    "in": "in inch inches",
    "kg": "kg kgs kilo kilos kilogram kilograms kilogramme kilogrammes",
    "g": "g gram grams gramme grammes",
    "mg": "mg milligram milligrams",
    "t": "t tonne tonnes",
    "oz": "oz ounce ounces",
    "l": "l litre litres liter liters",
    "ml": "ml millilitre millilitres milliliter milliliters",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "d": "d day days",
    "wk": "wk wks week weeks",
    "yr": "yr yrs year years",
    "°": "° deg degree degrees",
    "°c": "°c ℃ celsius",
    "°f": "°f ℉ fahrenheit",
    "w": "w watt watts",
    "kw": "kw kilowatt kilowatts",
    "v": "v volt volts",
    "hz": "hz hertz",
    "j": "j joule joules",
    "n": "n newton newtons",
    "ha": "ha hectare hectares",
}
_MEANINGS: dict[str, frozenset[str]] = {
    word: frozenset(unit for unit, spellings in _SPELLINGS.items() if word in spellings.split())
    for spellings in _SPELLINGS.values()
    for word in spellings.split()
}
_POWERS = (
    (re.compile(r"\bper\s+cent\b"), "percent"),
    (re.compile(r"\s*(?:/|\bper\b)\s*"), " / "),
    (re.compile(r"\b(?:square|sq\.?)\s+(\w+)"), r"\1 ^2"),
    (re.compile(r"\b(?:cubic|cu\.?)\s+(\w+)"), r"\1 ^3"),
    (re.compile(r"²|\^2"), " ^2"),
    (re.compile(r"³|\^3"), " ^3"),
    (re.compile(r"\bdegrees?\s+(?=celsius|fahrenheit)|°\s*(?=celsius|fahrenheit)"), ""),
    (re.compile(r"°\s+(?=[cf]\b)"), "°"),
)


def same_unit(one: str, other: str) -> bool:
    """Whether two units mean the same; both in lower case, nothing for a number that has none."""
    first, second = _words(one), _words(other)
    return len(first) == len(second) and all(_meanings(a) & _meanings(b) for a, b in zip(first, second, strict=True))


def _words(unit: str) -> list[str]:
    for pattern, spelling in _POWERS:
        unit = pattern.sub(spelling, unit)
    return unit.split()


def _meanings(word: str) -> frozenset[str]:
    """What a word may mean; one that is no known unit means itself, in the singular."""
    return _MEANINGS.get(word) or frozenset([word.removesuffix("s") if len(word) > 3 else word])
