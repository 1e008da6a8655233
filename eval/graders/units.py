"""Units of measure by what they mean: «$5» and «5 dollars», «5 km» and «5 kilometres» name the same, and a pound is money or a weight.

Case says nothing (KM, Minutes) but where it tells two units apart that are both in use: mW and MW, mg and Mg, Mb and MB, pA and Pa. One
that is written in neither way, as `mhz`, may be either.
"""

from __future__ import annotations

import re

_OF_DATA = {"k": "kilo", "m": "mega", "g": "giga", "t": "tera", "p": "peta"}
_SCALED = {"W": "watt", "Hz": "hertz", "J": "joule", "N": "newton", "Pa": "pascal", "V": "volt", "eV": "electronvolt", "A": "ampere"}
"""Units of which there are thousandths and millions, as they are written."""
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
    **{f"{letter}byte": f"{letter}byte {letter}bytes {prefix}byte {prefix}bytes" for letter, prefix in _OF_DATA.items()},
    **{f"{letter}bit": f"{letter}bit {letter}bits {prefix}bit {prefix}bits" for letter, prefix in _OF_DATA.items()},
    **{f"mega {unit}": f"mega{name} mega{name}s" for unit, name in _SCALED.items()},
    **{f"milli {unit}": f"milli{name} milli{name}s" for unit, name in _SCALED.items()},
}
_MEANINGS: dict[str, frozenset[str]] = {
    word: frozenset(unit for unit, spellings in _SPELLINGS.items() if word in spellings.split())
    for spellings in _SPELLINGS.values()
    for word in spellings.split()
}
_POWERS = tuple(
    (re.compile(pattern, re.IGNORECASE), spelling)
    for pattern, spelling in (
        (r"\bper\s+cent\b", "percent"),
        (r"\bmph\b", "mi / h"),
        (r"\bk(?:ph|mh)\b", "km / h"),
        (r"\s*(?:/|\bper\b)\s*", " / "),
        (r"\bsq([cdk]?m|ft|in|mi|yd)\b", r"\1 ^2"),
        (r"\b(?:square|sq\.?)\s+(\w+)", r"\1 ^2"),
        (r"\b(?:cubic|cu\.?)\s+(\w+)", r"\1 ^3"),
        (r"²|\^2", " ^2"),
        (r"³|\^3", " ^3"),
        (r"\bdegrees?\s+(?=celsius|fahrenheit)|°\s*(?=celsius|fahrenheit)", ""),
        (r"°\s+(?=[cf]\b)", "°"),
    )
)
_PREFIXED = re.compile(r"(?P<prefix>[mM])(?P<unit>w|hz|j|n|pa|v|ev|a|g|s)", re.IGNORECASE)
_DATA = re.compile(r"(?P<prefix>[kmgtp])(?P<unit>b)", re.IGNORECASE)


def same_unit(one: str, other: str) -> bool:
    """Whether two units, as they are written, mean the same; nothing for a number that has none."""
    first, second = _words(one), _words(other)
    return len(first) == len(second) and all(_meanings(a) & _meanings(b) for a, b in zip(first, second, strict=True))


def unit_key(unit: str) -> tuple[frozenset[str], ...]:
    """What spellings of one unit share; one that may mean two things is neither of them."""
    return tuple(map(_meanings, _words(unit)))


def known_unit(unit: str) -> bool:
    """Whether every word of a unit is one that is known here."""
    words = [word for word in _words(unit) if word not in ("/", "^2", "^3")]
    return bool(words) and all(word.lower() in _MEANINGS or _PREFIXED.fullmatch(word) or _DATA.fullmatch(word) for word in words)


def _words(unit: str) -> list[str]:
    for pattern, spelling in _POWERS:
        unit = pattern.sub(spelling, unit)
    return unit.split()


def _meanings(word: str) -> frozenset[str]:
    """What a word may mean; one that is no known unit means itself, in the singular."""
    if scaled := _PREFIXED.fullmatch(word):
        return _thousandth_or_million(scaled["prefix"], scaled["unit"])
    if data := _DATA.fullmatch(word):
        prefix, of_bits, of_bytes = data["prefix"].lower(), f"{data['prefix']}bit".lower(), f"{data['prefix']}byte".lower()
        exact = data["prefix"].isupper() or prefix == "k"
        return frozenset([of_bytes] if exact and data["unit"] == "B" else [of_bits] if exact else [of_bits, of_bytes])
    if word == "pA":
        return frozenset(["picoampere"])
    plain = word.lower()
    return _MEANINGS.get(plain) or frozenset([plain.removesuffix("s") if len(plain) > 3 else plain])


def _thousandth_or_million(prefix: str, unit: str) -> frozenset[str]:
    """What `m` or `M` before a unit makes of it; either where the unit is not written as it should be."""
    known = next((name for name in (*_SCALED, "g", "s") if name.lower() == unit.lower()), unit)
    small, large = "mg" if known == "g" else f"milli {known}", f"mega {known}"
    return frozenset([small, large] if unit != known else [large] if prefix == "M" else [small])
