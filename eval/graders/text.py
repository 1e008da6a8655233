"""One spelling for the signs that Unicode has in several: composed accents, straight quotes, the hyphen, ASCII punctuation.

Letters and digits stay as they are, so that what only looks like a word or a number is still another.
"""

from __future__ import annotations

import re
import unicodedata

_SPELLINGS = {
    "'": "‘’‚‛ʼ′´＇",
    '"': "“”„‟«»″＂",
    "-": "‐‑‒–—―−－",
    ".": "。．｡",
    ",": "，、",
    "!": "！",
    "?": "？",
    ":": "：",
    ";": "；",
    "(": "（",
    ")": "）",
    "%": "％",
    "...": "…",
}
_WRAPPED = re.compile(r"\*\*(.+)\*\*|`(.+)`|\"(.+)\"", re.DOTALL)
_FOLDED = str.maketrans({sign: spelling for spelling, signs in _SPELLINGS.items() for sign in signs})


def fold(text: str) -> str:
    """`text` with composed accents and punctuation of ASCII; folding again changes nothing."""
    return unicodedata.normalize("NFC", text).translate(_FOLDED)


def unwrapped(text: str) -> str:
    """`text` without blanks around it, and without emphasis or quotes."""
    found = _WRAPPED.fullmatch(text.strip())
    return next(filter(None, found.groups())).strip() if found else text.strip()
