"""Mathematical text: conversion of Unicode to LaTeX, lists and named values, and expressions in prose.

`x = 5`, `f(x) = 5` and `(x, y) = (1, 2)` name their values; against an answer without names only the values are compared.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import partial

from eval.graders.numbers import changed, final_number, known_unit

_SIGNS = {
    "−": "-",
    "–": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": "/",
    "π": r"\pi ",
    "θ": r"\theta ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "⩽": r"\le ",
    "≥": r"\ge ",
    "⩾": r"\ge ",
    "≠": r"\ne ",
    "∈": r"\in ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∅": r"\emptyset ",
    "ℝ": r"\mathbb{R}",
    "°": r"^\circ ",
    "\u00a0": " ",
    "\u2009": " ",
    "\u202f": " ",
}
_COMPOSED = (
    (re.compile("([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)"), r"^{\1}"),
    (re.compile("([¼-¾⅐-⅞])"), r"\\frac{\1}"),
)
"""Superscripts, and single-character fractions."""
_WORD = re.compile(r"(?<![\\A-Za-z])(?!(?:and|or|sqrt|sin|cos|tan|log|exp)\b)[A-Za-z]{3,}")
"""A word: an "and" next to it joins words rather than values."""
_AND = r"(?:\\text\s*\{\s*and\s*\}|(?<![A-Za-z\\])and(?![A-Za-z]))"
_SPACE = r"(?:\\[,;:!>]|\\q?quad(?![A-Za-z])|~|\s)"
_LISTED = re.compile(rf"{_SPACE}*(?:{_AND}|\$\s*{_AND}\s*\$){_SPACE}*")
"""An "and" between values or formulas."""
_FUNCTION = r"(ln|log|exp|(?:arc)?(?:sin|cos|tan)|(?:sin|cos|tan)h|cot)"
_REWRITTEN = (
    (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"√\s*\{([^{}]*)\}", r"\\sqrt{\1}"),
    (r"√\s*([0-9]+(?:\.[0-9]+)?|[A-Za-z])", r"\\sqrt{\1}"),
    (r"(?<![\\A-Za-z])sqrt\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
    (r"(?<![\\A-Za-z])(?:infinity|oo)(?![A-Za-z])", r"\\infty "),
    (rf"(?<![\\A-Za-z]){_FUNCTION}(?=\s*(?:[({{\\^_0-9]|[A-Za-z](?![A-Za-z])))", r"\\\1"),
    (r"\*\*", "^"),
    (r"\^\s*(-[0-9]+(?:\.[0-9]+)?)", r"^{\1}"),
    (r"\\mathrm\s*\{([dei])\}", r"\1 "),
    (r"\\(?:textnormal|textrm|textit|mathrm|mbox)\b", r"\\text"),
    (r"(?<!\\);", ","),
    (r"(?<![0-9][0-9]{3})(?<=[0-9])\\[,;: ]\s*(?=[0-9]{3}(?![0-9]))", ""),
    (r"\\varnothing(?![A-Za-z])", r"\\emptyset "),
    (r"(?<=[0-9])\s*(?:per\s?cent|pct)\b(?!\s*points?)", r"\\%"),
    (r"!=|\\neq(?![A-Za-z])", r"\\ne "),
    (r",\s*\\!\s*(?=[0-9]{3})", ","),
    (r",\s*(?:\\[,;:>]|\\q?quad|\\ )+\s*(?=[^A-Za-z]|[A-Za-z](?![a-z]))", ", "),
    (r"\s*\\q?quad\s*(?=[A-Za-z]_)", ", "),
)
_REPEATING = re.compile(r"(?<![0-9.])([0-9]{0,9})\.([0-9]{0,9})\\(?:overline|bar|dot)\s*(?:\{([0-9]{1,9})\}|([0-9]))")
_AREA = re.compile(r"(?<=[0-9})])(?:\s|\\[ ,])+([cdk]m|mm|ft|yd|mi)\s*\^\s*\{?([23])\}?(?![\w^])")
"""A power of a two-letter unit; math-verify would multiply the letters."""
_REWRITTEN_SIGNS = tuple((re.compile(pattern), template) for pattern, template in _REWRITTEN)
LONGEST_PROSE = 4_000
"""Characters at the end of a text that are searched for its last expression."""
_LETTER = r"(?:[A-Za-z]|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|ell))"
_SYMBOL = rf"{_LETTER}(?:\s*_\s*(?:\w|\{{[^{{}}]*\}}))?(?:\s*\(\s*\w+(?:\s*,\s*\w+)*\s*\))?"
_FIGURE = r"\|?[A-Z]{2,5}\|?|\\(?:angle|triangle)\s*[A-Z]{1,3}|\\overline\{[A-Z]+\}"
_NAME = rf"(?:{_SYMBOL}|{_FIGURE})"
_RATIO = rf"{_NAME}(?:_\{{[^{{}}]*\}})?(?:\s*[:/]\s*{_NAME})?|\\frac\{{{_NAME}\}}\{{{_NAME}\}}"
_TUPLE = rf"(?:\\left)?\(\s*{_NAME}(?:\s*,\s*{_NAME})+\s*(?:\\right)?\)"
NAMES = rf"(?:{_RATIO}|{_TUPLE})"
"""Names of values: a variable, a function of variables, a figure, a ratio, or a tuple of them."""
OR = re.compile(r"\\text\s*\{\s*or\s*\}|(?<![A-Za-z])or(?![A-Za-z])|\\(?:l?or|vee)(?![A-Za-z])")
_NAMED = re.compile(rf"\s*(?P<name>{NAMES})\s*(?:=|\\in(?![A-Za-z]))\s*(?P<value>[^=]+?)\s*")
_SEGMENT = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+?)\$|\\\(([^\n]+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_FRACTION = re.compile(
    r"(?<![\w/.^{}\\])-?(?:[0-9]+\s*/\s*[0-9]+(?![\w/^])|\\[cdt]?frac\{[0-9]+\}\{[0-9]+\})"
    r"(?!\s*(?:[*+^_×·\\({}]|-\s*[0-9A-Za-z\\(]|[A-Za-z](?![A-Za-z])))"
)
_FACTOR = re.compile(r"(?:[0-9)}\]]|\\[A-Za-z]+|(?<![A-Za-z'])[B-HJ-Zb-z])\s*$")
"""Text that turns a following fraction into a factor or part of a mixed number."""
_TOUCHED = re.compile(r"(?<=[^\W\d_\u0000-\u024f])(?=[0-9])")
"""A non-Latin letter directly before a digit."""
_UNIT = re.compile(r"\s*([A-Za-z°$€£¢²³]+)(?:\s*(?:/|\bper\b)\s*[A-Za-z]+[²³]?|\^[23])?")
_CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds", "¢": "cents", "°": "degrees"}
_POWERS = {"²": "2", "³": "3"}
_EMPHASIS = re.compile(r"(?<![0-9A-Za-z)\]}])\*\*(?=[^\s*])([^*\n]*[^\s*])\*\*")
_JOINED = re.compile(r"[\s,;]*(?:\band\b)?[\s,;]*", re.IGNORECASE)
_HEDGED = re.compile(
    r"(?:\b(?:about|around|approximately|roughly|maybe|perhaps|possibly|either|or|to|between|and)\b|[≈~;/|+×*-])\s*$", re.IGNORECASE
)
_BROKEN = re.compile(r"\$\s*\n|\\[(\[]")
"""LaTeX delimiters that never close, or close on another line."""
_PERCENT = re.compile(r"\s*(?:\\?%|(?:percent|pct)\b)")
_EQUALS = re.compile(r"(?<![<>!\\])=")
_ROUNDED = re.compile(r"\s*(?:\\approx(?![A-Za-z])|≈)")
_DECIMAL = re.compile(r"\s*-?[0-9][0-9.,]*\s*")
_NAME_OF_COMMAND = re.compile(r"\\[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Assigned:
    """The values of a text as LaTeX, and the names it gives them, if any."""

    names: tuple[str, ...]
    values: str


def as_latex(text: str) -> str:
    """Convert Unicode and plain-text signs to LaTeX, and "and" between values to a comma."""
    for sign, latex in _SIGNS.items():
        text = text.replace(sign, latex)
    for pattern, template in _COMPOSED:
        text = pattern.sub(partial(_composed, template), text)
    for pattern, template in _REWRITTEN_SIGNS:
        text = pattern.sub(template, text)
    text = _AREA.sub(r"\\text{ \1}^\2", _REPEATING.sub(_repeating, text))
    return text if _WORD.search(text) else _LISTED.sub(", ", text)


def _composed(template: str, sign: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", sign.expand(template)).replace("\u2044", "}{").replace("\u2212", "-")


def _repeating(decimal: re.Match[str]) -> str:
    r"""Convert `0.1\overline{6}` to a fraction."""
    whole, once, again = decimal[1] or "0", decimal[2], decimal[3] or decimal[4]
    return rf"\frac{{{int(whole + once + again) - int(whole + once)}}}{{{'9' * len(again) + '0' * len(once)}}}"


def one_of_name(text: str) -> str:
    """Convert "x = 1 or x = 2" to a list, because both are solutions; return anything else unchanged."""
    parts = OR.split(text)
    named = [_NAMED.fullmatch(part) for part in parts]
    names = {_tight(match["name"]) for match in named if match is not None}
    return ", ".join(part.strip() for part in parts) if len(parts) > 1 and all(named) and len(names) == 1 else text


def split_list(text: str) -> list[str]:
    """Split `text` at commas and semicolons outside all brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign in ",;" and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def read_names(text: str) -> Assigned:
    """Read `a = 1, b = 2` as a tuple of values, `x = 1, x = 2` as a list, and `p = 5, q = 2; p = 7, q = 2` as a list of tuples."""
    found = [_NAMED.fullmatch(part) for part in split_list(text)]
    named = [match for match in found if match is not None]
    if not named or (len(named) < len(found) and found[0] is None):
        return Assigned((), text)
    if len(named) < len(found):
        plain = [part for match, part in zip(found[1:], split_list(text)[1:], strict=True) if match is None and "=" not in part]
        whole = len(named) == 1 and len(plain) == len(found) - 1
        return Assigned((_tight(named[0]["name"]),), ", ".join([named[0]["value"], *plain])) if whole else Assigned((), text)
    names, values = [_tight(match["name"]) for match in named], [match["value"] for match in named]
    period = tuple(dict.fromkeys(names))
    if len(names) % len(period) or names != list(period) * (len(names) // len(period)):
        return Assigned((), text)
    width = len(period)
    groups = [", ".join(values[place : place + width]) for place in range(0, len(values), width)]
    return Assigned(period, ", ".join(groups if width == 1 else [f"({group})" for group in groups]))


def last_in_prose(text: str) -> str | None:
    """Return the last expression of a sentence, LaTeX or a number; None if it is missing, denied, in doubt, or one of a choice.

    LaTeX segments separated only by commas and "and" form one list.
    """
    text = _TOUCHED.sub(" ", _EMPHASIS.sub(r"\1", text[-LONGEST_PROSE:]))
    segments = list(_SEGMENT.finditer(text))
    prose = _SEGMENT.sub(lambda found: "\x00" * len(found[0]), text)
    fraction = next(iter(list(_FRACTION.finditer(prose))[-1:]), None)
    figure = max((place for place, sign in enumerate(prose) if sign in "0123456789"), default=-1)
    if _BROKEN.search(prose):
        return None
    if segments and segments[-1].end() > figure:
        return _last_segments(text, segments)
    if fraction and fraction.end() > figure:
        return None if _FACTOR.search(text[: fraction.start()]) or _in_doubt(text, fraction.start(), fraction.end()) else fraction[0]
    number = final_number(prose)
    start = re.search(r"[-−–$€£]*[0-9][0-9.,\s]*$", prose[: figure + 1])
    if number is None or start is None or _HEDGED.search(prose[: start.start()]):
        return None
    return f"{number:f}{_unit(start[0], prose[figure + 1 :])}"


def _last_segments(text: str, segments: list[re.Match[str]]) -> str | None:
    first = len(segments) - 1
    while first and (between := text[segments[first - 1].end() : segments[first].start()]).strip() and _JOINED.fullmatch(between):
        first -= 1
    if _in_doubt(text, segments[first].start(), segments[-1].end()):
        return None
    inner = [next(filter(None, segment.groups())) for segment in segments[first:]]
    after = text[segments[-1].end() :]
    sign = r"\%" if _PERCENT.match(after) else _unit("", after) if len(inner) == 1 and _DECIMAL.fullmatch(inner[0]) else ""
    return ", ".join(_end_of_chain(exact_part(expression)) for expression in inner) + sign


def _unit(before: str, after: str) -> str:
    """The unit next to a number, as LaTeX: a currency sign before it, or the longest known unit after it."""
    found = None if _PERCENT.match(after) else _UNIT.match(after)
    units = [sign for sign in before if sign in "$€£"] + ([found[0], found[1]] if found else [])
    unit = next(filter(known_unit, units), None)
    spelt = "".join(_CURRENCIES.get(sign, sign) for sign in unit or "").strip()
    plain, power = (spelt[:-1], f"^{_POWERS[spelt[-1]]}") if spelt[-1:] in _POWERS else (spelt, "")
    return rf"\text{{ {plain}}}{power}" if plain.isascii() and plain else ""


def exact_part(expression: str) -> str:
    r"""The exact part of `x = 1/3 \approx 0.33` or `\sqrt{2} \approx 1.41`; the whole text if that is a name or a decimal."""
    sign = _ROUNDED.search(expression)
    if sign is None:
        return expression
    exact, rounded = expression[: sign.start()], expression[sign.end() :]
    plain = _NAME_OF_COMMAND.sub("*", exact).strip()
    constant = not re.search("[A-Za-z]", plain) and re.search(r".[-+/^]|\*", plain) and _DECIMAL.fullmatch(rounded)
    return exact if "=" in exact or constant else expression


def _end_of_chain(expression: str) -> str:
    parts = _EQUALS.split(expression)
    return (parts[-1] if len(parts) > 2 and "," not in expression else expression).strip()


def _in_doubt(text: str, start: int, end: int) -> bool:
    return bool(_HEDGED.search(text[:start])) or changed(text[:start], text[end:])


def _tight(name: str) -> str:
    return re.sub(r"_\{(\w)\}", r"_\1", re.sub(r"\s|\\left|\\right", "", name))
