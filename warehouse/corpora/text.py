"""Small questions about text that the corpus readers share."""

from __future__ import annotations

import html
import re
import unicodedata

_TAG = re.compile(r"<[^>]+>")
_SPACE = re.compile(r"\s+")


def tidy(text: str) -> str:
    """`text` in Unicode's composed form, with single ordinary spaces."""
    return _SPACE.sub(" ", unicodedata.normalize("NFC", text)).strip()


def plain(markup: str) -> str:
    """The text of a piece of HTML."""
    return tidy(_TAG.sub(" ", html.unescape(markup)))


def folded(text: str) -> str:
    """`text` without case and accents: for matching names, never for showing them."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def states(text: str, phrase: str) -> bool:
    """Whether `phrase` stands in `text` as whole words; case and accents count."""
    start = text.find(phrase) if phrase else -1
    while start >= 0:
        end = start + len(phrase)
        if not text[start - 1 : start].isalnum() and not text[end : end + 1].isalnum():
            return True
        start = text.find(phrase, start + 1)
    return False
