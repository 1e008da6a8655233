"""Numbers in answers: the final number of a worked solution (GSM8K's rule), a single number with a tolerance, and units.

The final number is the first one after the last marker (`####`, `A:` or "answer is"), otherwise the last number of the text. Numbers are
decimal, in ASCII or full-width digits, with an optional sign (also "minus 3"), thousands separators, a currency sign, an exponent, a scale
("3 million", $3k) and a percent sign, which divides by 100.

The following yield no number, and the search does not continue: part of something larger (1/2, 10^2, 10:30, 1.2.3, 5-3, 10²), one of
several side by side ("16, 17 or 18"), one changed by its context ("not 18", "at least 18", "half of 18", 18!, see `changed`), more than
1,000 digits, or a text with several answer tags. Plain hedges ("about 18", "perhaps 18") are ignored.

Units are compared by meaning: "$5" equals "5 dollars", "5 km" equals "5 kilometres"; a pound is money or weight. Case matters only where it
distinguishes two units in use: mW and MW, mg and Mg, Mb and MB, pA and Pa. A spelling that fits neither, such as `mhz`, may be either.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from eval.graders.text import plain, several_answers, spaced, unwrapped

LONGEST = 1_000
"""Maximum digits of a number."""

_MARKER = re.compile(r"####|\bA:|\b(?i:answer is)\b")
_SCALES: Mapping[str, int] = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_LETTERS: Mapping[str, int] = {"k": 3, "K": 3, "M": 6, "B": 9, "bn": 9, "tn": 12}
_SPACES = " \u00a0\u2009\u202f"
_GROUPED = rf"[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])|[0-9]{{1,3}}(?:[{_SPACES}][0-9]{{3}})+(?![{_SPACES}]?[0-9])"
_DIGITS = rf"(?:{_GROUPED}|[0-9]+)(?:\.[0-9]+)?|(?<!\.)\.[0-9]+"
_MINUS = "-−–‐‑‒﹣－"
_RAISED = "²³¹¼-¾⁰-₟⅐-↏①-⓿"
"""Numeric characters that are not digits: powers, indices, fractions."""
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
"""Text that makes two numbers one if nothing else is between them."""
_MIXED = re.compile(
    rf"(?P<minus>[{_MINUS}])?(?:(?P<whole>[0-9]{{1,9}})?\s?(?P<sign>[¼-¾⅐-⅞])|(?P<of>[0-9]{{1,9}})\s(?P<above>[0-9]{{1,4}})/(?P<below>[0-9]{{1,4}}))"
    r"(?P<unit>(?:\s?[A-Za-z%°][A-Za-z %°/]*)?\.?)"
)
_LATEX = re.compile(r"\$([^$]+)\$")
_LATE_MINUS = re.compile(rf"^[{_MINUS}]\s+(?=[$€£]?\.?[0-9])")
_UNIT_POWER = re.compile(r"(?<=[\s\d/])(?P<unit>[cdk]?m|ft|in|mi|yd)\^?\{?(?P<power>[23])\}?(?![\w^])")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Maximum distance from the right number: `absolute`, or `relative` times the right number, whichever is larger."""

    absolute: Fraction = Fraction(0)
    relative: Fraction = Fraction(0)


def final_number(text: str) -> Decimal | None:
    """Return the final number of `text` by the rule above, or None."""
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
    """Return whether both texts end with the same number. Raises ValueError if `gold` has no number."""
    right = final_number(gold)
    if right is None:
        raise ValueError("the gold has no number")
    return final_number(prediction) == right


def measure(text: str) -> tuple[Fraction, str] | None:
    """Parse a text that must be a number as a whole. Return it with its unit as written (may be empty), or None for anything else."""
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
    """Return whether `prediction` is one number, within `tolerance` of the gold's, in the gold's unit or without one.

    Raises ValueError if `gold` is not one number.
    """
    right, given = measure(gold), measure(prediction)
    if right is None:
        raise ValueError("the gold is not one number")
    if given is None or (given[1] and not same_unit(given[1], right[1])):
        return False
    return abs(given[0] - right[0]) <= max(tolerance.absolute, tolerance.relative * abs(right[0]))


def _standing_alone(text: str, numbers: list[re.Match[str]], place: int) -> Decimal | None:
    """Return the number at `place`; None if it is part of something larger, denied, a bound, or joined to a neighbour."""
    number = numbers[place]
    before = text[_end(numbers[place - 1]) : number.start("digits")] if place else None
    after = text[_end(number) : numbers[place + 1].start("digits")] if place + 1 < len(numbers) else None
    if number["trailing"] or any(between is not None and _JOINED.fullmatch(between) for between in (before, after)):
        return None
    return None if changed(text[: number.start()], text[_end(number) :]) else _value(number)


def _in_percent(text: str, numbers: list[re.Match[str]], place: int) -> Decimal | None:
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
    """Multiply `value` by a power of ten exactly; decimal arithmetic would round to 28 digits."""
    sign, digits, exponent = value.as_tuple()
    return Decimal((sign, digits, int(exponent) + places))


def _plainly(text: str) -> str:
    inner = _LATEX.fullmatch(text)
    text = _LATE_MINUS.sub("-", inner[1].strip() if inner else text)
    return _UNIT_POWER.sub(lambda power: power["unit"] + ("²" if power["power"] == "2" else "³"), text)


def _of_mixed(mixed: re.Match[str]) -> tuple[Fraction, str] | None:
    sign = unicodedata.normalize("NFKC", mixed["sign"] or f"{mixed['above']}/{mixed['below']}").replace("\u2044", "/")
    above, below = map(int, sign.split("/"))
    if not 0 < above < below:
        return None
    value = int(mixed["whole"] or mixed["of"] or 0) + Fraction(above, below)
    return (-value if mixed["minus"] else value), " ".join(mixed["unit"].rstrip(". ").split())


def _quotient(above: re.Match[str], below: re.Match[str], text: str) -> tuple[Fraction, str] | None:
    numerator, denominator = _value(above), _value(below)
    apart = (text[: above.start()].strip(), text[_end(above) : below.start()].strip(), text[_end(below) :].strip(" .\n"))
    if above["trailing"] or below["trailing"] or apart != ("", "/", "") or numerator is None or not denominator:
        return None
    return Fraction(numerator) / Fraction(denominator), ""


def _end(match: re.Match[str]) -> int:
    """End of the number itself, without the `trailing` characters that make it part of something larger."""
    return match.start("trailing") if match["trailing"] else match.end()


_SIGNS = r"[*$€£({\[\"'_`]*"
_COUNTS = "one|two|three|four|five|six|seven|eight|nine|ten"
_PARTS = (
    "half|third|quarter|fourth|fifth|sixth|eighth|tenth|hundredth|percent|per\\s+cent|fraction|root|square|cube|power|factorial|logarithm"
)
_COMPARED = "less|fewer|more|greater|larger|smaller|higher|lower|bigger|longer|shorter|older|younger"
_REFUSED = r"not\s+(?:(?:the|my|a|an)\s+)?(?:right|correct|answer|enough|possible|it|true|solution|final)\b|not\s*[.!]*\s*$"
_BEFORE = (
    # denials
    r"(?:\b(?:not|never|neither|nor|no|cannot|hardly|scarcely)\b|n't\b|≠|!=|\\neq?\b)\s*(?:(?!but\b)[\w$€£]+\s+){0,2}",
    r"(?:\b(?:not|never|nobody|cannot|doubt)\b|n't\b)(?:(?!\b(?:but|so|and|then|therefore|because|since|until|before)\b)[^.\n;:,!?0-9]){0,40}"
    r"\b(?:is|be|was|are|were|it's|that's|equals?|say|says|said)\s+",
    r"\b(?:wrong|incorrect|false|mistaken|(?<!no )(?<!without )(?<!without a )(?<!beyond )doubt|rule[sd]?\s+out)\b[^.\n0-9]{0,20}",
    r"\b(?:instead\s+of|apart\s+from|anything\s+but|except(?:\s+for)?|excluding|without|far\s+from|nowhere\s+near|short\s+of)\s+",
    r"\bif\s+(?:it|that|this)\s+(?:were|was|is)\s+",
    # bounds; `>>` closes a calculation of GSM8K, `x>` a tag
    r"(?:(?<!<)<|(?<![\w>/\"'])>|[≤≥]|\\(?:[lg]eq?|[lg]eqslant|lt|gt)\b)=?\s*",
    rf"\b(?:{_COMPARED}|other|rather)\s+than(?:\s+or\s+equal\s+to)?\s+",
    r"\bat\s+(?:least|most)\s+|\b(?:over|under|above|below|beyond|exceeds|exceeding|almost|nearly|barely|max|min)\s+",
    r"\b(?:(?:minimum|maximum|min|max|excess|upwards|north|south|factorial)\s+of|as\s+(?:many|few|much|little)\s+as|close\s+to)\s+",
    r"(?<!adds )(?<!add )(?<!added )(?<!adding )(?<!comes )(?<!come )(?<!sums )\bup\s+to\s+",
    # functions, signs and operators
    r"(?:[√∛∜±^]|\\(?:sqrt|[dt]?frac|log|ln|sin|cos|tan|binom|pm)|\b(?:sqrt|log|ln|sin|cos|tan|exp|squared))\s*[\[{(]*",
    r"(?<![A-Za-z])[A-Za-z]\(|[-−]\(",
    r"\b(?:multiplied|divided|divisible)\s+by\s+|\b(?:times|plus|modulo|mod|raised\s+to)\s+",
    # parts and multiples
    r"\b(?:half|twice|thrice|double|triple|treble|quadruple)\s+(?:of\s+)?",
    rf"(?:\b(?:{_PARTS})s?|%|[0-9])\s+(?:out\s+)?of\s+(?:the\s+)?",
    r"\b(?:reciprocal|inverse|opposite|negation|negative|multiples?|factors?|divisors?|digits?)\s+of\s+|\bout\s+of\s+",
    rf"\b(?:{_COUNTS})\s+(?:in|of)\s+",
    r"\b(?:hundred|thousand|million|billion)\s+(?:and\s+)?",
    # Chinese, without a blank before the number
    r"(?:[不非没沒無无未否约約近超或至]|[大小多少高低][于於])[^\W0-9A-Za-z_]{0,8}\s*",
    # names of places in a text
    r"\b(?:step|question|problem|page|option|example|equation|exercise|lesson|chapter|section|appendix|no\.|fig(?:ure|\.))\s+|(?<!#)#",
)
_AFTER = (
    # signs, indices, ordinals; a letter that is no unit is a variable, and letters before a digit are a name
    r"\s*[¼-¾⅐-⅞‰]|\s*\(?\?|\^(?!\{?\\circ)|_(?=[\w{])|\+(?!\s*[0-9])|-\s*$",
    r"\s*(?:<(?![/A-Za-z])|>(?!>)|[≤≥≠≈±~]|\\(?:[lg]eq?|neq?|approx|pm)\b)",
    r"(?:st|nd|rd|th|ths)\b|(?-i:[abeijnopqruvwxyzBDEGHIOPQRSUXYZπ](?!\w))|(?![cdk]?m[23]\b)[A-Za-z]+[0-9]",
    r"\s?-?(?:ish|fold)\b",
    # functions
    r"\s*\b(?:squared|cubed|factorial|doubled|halved|tripled|quadrupled|negated|reversed|rounded)\b",
    # multiples, ranges and denials in Chinese; before a unit, 千 and 百 are prefixes of its name
    r"\s*[十百千万萬亿億兆半到至或](?![克米升瓦卡赫帕伏焦])|\s*[，,]?[^\W0-9A-Za-z_]{0,6}[不错錯非]",
    r"\s*\b(?:dozens?|scores?|gross|grand|lakhs?|crores?|tens|hundreds|thousands|halves|thirds|fifths|sixths|tenths|hundredths|thousandths|basis\s+points?|per\s+mille)\b",
    r"\s+(?:twice|thrice)\s*[.!]*\s*$",
    r"\s+(?-i:[kKMBnxyz]|bn|mn|tn|mio|bps)(?![\w&'-])",
    r"\s+too\s+(?:many|few|much|little)\b|\s+times\s+(?:as|more|less|larger|bigger|the|that)\b",
    r"\s+(?:degrees\s+)?below\b",
    # bounds
    r"\s+(?:or|and)\s+(?:more|less|fewer|so|above|below|over|under|up|older|younger|counting|higher|lower|greater|then)\b",
    r"\s+(?:at\s+(?:least|most)|minimum|maximum|tops|plus|to\s+the\s+power|to\s+the\s+\w+\s+power)\b",
    rf"\s+and\s+(?:an?|{_COUNTS})\s+(?:{_PARTS})s?\b|\s+to\s+(?:{_COUNTS})\b|\s+(?:minus|over|and|or)\s*\.?\s*$",
    # denials
    rf"\s+(?:[\w$€£]+\s+){{0,2}}?(?:is|are|was|were|be|seems?|looks?)\s+(?:\w+\s+){{0,2}}(?:(?:false|impossible|too)\b|{_REFUSED})",
    r"\s+is\s+(?:\w+\s+)?(?:less|more|short|off|far|close|near)\b|[^.;\n0-9]{0,60}\b(?:wrong|incorrect|mistaken)\b",
    r"\s+(?:[\w$€£]+\s+){0,2}?(?:isn't|aren't|wasn't|cannot|can't|can\s+not|won't|must\s+not)\b|\s+(?:would|could|should|will|might)(?:\s+not\b|n't\b)",
    r"\s+(?:fails?|does\s+not|doesn't|has\s+been\s+ruled\s+out)\b",
    r"\s*[,;:(–—-]*\s*(?:(?:which|that)\s+is\s+)?(?:false|no|not)\s*[.)!]*\s*$",
)
_CHANGED_BEFORE = re.compile(rf"(?:{'|'.join(_BEFORE)}){_SIGNS}$", re.IGNORECASE)
_CHANGED_AFTER = re.compile(rf"[)}}]*!|[*$)}}\]\"'_`]*(?:{'|'.join(_AFTER)})", re.IGNORECASE)
WINDOW = 80
"""Characters of the line examined on either side."""


def changed(before: str, after: str) -> bool:
    """Return whether the text before or after a number changes it: bounds, functions, denials, factors, other units of count."""
    line, rest = before.rsplit("\n", 1)[-1][-WINDOW:], after.split("\n", 1)[0][:WINDOW]
    return bool(_CHANGED_BEFORE.search(line) or _CHANGED_AFTER.match(rest))


_OF_DATA = {"k": "kilo", "m": "mega", "g": "giga", "t": "tera", "p": "peta"}
_SCALED = {"W": "watt", "Hz": "hertz", "J": "joule", "N": "newton", "Pa": "pascal", "V": "volt", "eV": "electronvolt", "A": "ampere"}
"""Units with the prefixes milli and mega, in their standard spelling."""
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
    """Return whether two units mean the same; an empty unit is that of a plain number."""
    first, second = _words(one), _words(other)
    return len(first) == len(second) and all(_meanings(a) & _meanings(b) for a, b in zip(first, second, strict=True))


def unit_key(unit: str) -> tuple[frozenset[str], ...]:
    """Return a key shared by spellings of one unit; an ambiguous spelling has its own key."""
    return tuple(map(_meanings, _words(unit)))


def known_unit(unit: str) -> bool:
    """Return whether every word of a unit is known."""
    words = [word for word in _words(unit) if word not in ("/", "^2", "^3")]
    return bool(words) and all(word.lower() in _MEANINGS or _PREFIXED.fullmatch(word) or _DATA.fullmatch(word) for word in words)


def _words(unit: str) -> list[str]:
    for pattern, spelling in _POWERS:
        unit = pattern.sub(spelling, unit)
    return unit.split()


def _meanings(word: str) -> frozenset[str]:
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
    """The meanings of `m` or `M` before a unit; both if the unit is not in its standard spelling."""
    known = next((name for name in (*_SCALED, "g", "s") if name.lower() == unit.lower()), unit)
    small, large = "mg" if known == "g" else f"milli {known}", f"mega {known}"
    return frozenset([small, large] if unit != known else [large] if prefix == "M" else [small])
