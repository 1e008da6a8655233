"""Whether a text names something: whole words, whatever their case, punctuation and accents.

One comparison serves every check of what a teacher wrote: names that must stand in a text, and names that must not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_WORD = re.compile(r"\w+")
_QUALIFIER = re.compile(r"\s*\([^()]*\)\s*$")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def plain(text: str) -> str:
    """The words of `text` in lower case without accents, joined by single spaces."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return " ".join(_WORD.findall("".join(letter for letter in decomposed if not unicodedata.combining(letter))))


def unqualified(title: str) -> str:
    """A title without the qualifier in brackets at its end: "Blue River (film)" becomes "Blue River"."""
    return _QUALIFIER.sub("", title)


def mentions(text: str, name: str) -> int:
    """How often `name` stands in `text` as whole words; 0 for a name without a word."""
    return _spaced(text).count(_within(name)) if plain(name) else 0


def without(text: str, names: Iterable[str]) -> str:
    """The plain words of `text` with every mention of `names` replaced by a bar, the longest names first."""
    left = _spaced(text)
    for name in sorted(filter(plain, names), key=lambda name: len(plain(name)), reverse=True):
        left = left.replace(_within(name), " | ")
    return left


def _spaced(text: str) -> str:
    """The plain words with two spaces around each, so that neighbouring mentions share none."""
    return f"  {plain(text).replace(' ', '  ')}  "


def _within(name: str) -> str:
    return f" {plain(name).replace(' ', '  ')} "


def numbers(text: str) -> set[str]:
    """The numbers in `text`, without separators."""
    return {re.sub(r"\D", "", number) for number in _NUMBER.findall(text)}
