"""One spelling of a text for verifiers: what Unicode writes in several ways, and what cannot be seen.

`plain` serves every verifier: NFKC for letters and digits, and no invisible format characters.
Raised and lowered figures and fractions stay, because 10² is not 102. `fold` adds one spelling of punctuation and of initials, for
verifiers that compare words; `lower` ignores case as Unicode does.
"""

from __future__ import annotations

import re
import unicodedata

_SPELLINGS = {
    "'": "‘’‚‛ʼ′´＇",
    '"': "“”„‟«»″＂「」『』《》〈〉﹁﹂﹃﹄",
    "-": "‐‑‒–—―−－",
    ".": "。．｡",
    ",": "，、،",
    "!": "！",
    "?": "？؟",
    ":": "：",
    ";": "；؛",
    "(": "（",
    ")": "）",
    "[": "【〔〖［",
    "]": "】〕〗］",
    "%": "％٪",
    "·": "・･•‧∙",
    "...": "…",
}
_WRAPPED = re.compile(r"\*\*(.+)\*\*|`(.+)`|\"(.+)\"", re.DOTALL)
_FOLDED = str.maketrans({sign: spelling for spelling, signs in _SPELLINGS.items() for sign in signs})
_KEPT = ("<super>", "<sub>", "<fraction>", "<circle>")
"""Decompositions that would change a number."""
_SIGNS = frozenset("ℝℕℤℚℂ…")
"""Characters that stand for themselves in mathematics."""
_INITIAL = re.compile(r"(?<![^\W\d_])([^\W\d_])\.\s+(?=[^\W\d_]\.)")
_UNSPACED = re.compile(r"(?<!\d)(?<=[\u0590-\u1fff\u2e80-\uffdc])(?=[0-9])")
"""Where a letter of a script that writes no space before figures, such as Chinese, Thai or Hebrew, precedes a figure."""


def plain(text: str) -> str:
    """A text with compatible letters and digits in one spelling, without format characters; applying it again changes nothing."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", "".join(map(_spelt, text)))


def fold(text: str) -> str:
    """`plain`, with punctuation in ASCII and initials without spaces between them; folding again changes nothing."""
    return _INITIAL.sub(r"\1.", plain(text).translate(_FOLDED))


def lower(text: str) -> str:
    """A text without regard to case: Unicode's full case folding, with Turkish dotted and dotless i as i."""
    return text.casefold().replace("i\u0307", "i").replace("ı", "i")


def spaced(text: str) -> str:
    """A text with a space before figures that follow a letter of a script that writes none there."""
    return _UNSPACED.sub(" ", text)


def unwrapped(text: str) -> str:
    """`text` without blanks around it, and without emphasis or quotes."""
    found = _WRAPPED.fullmatch(text.strip())
    return next(filter(None, found.groups())).strip() if found else text.strip()


def _spelt(sign: str) -> str:
    if unicodedata.category(sign) == "Cf" or "\ufe00" <= sign <= "\ufe0f":
        return ""
    kept = sign in _SIGNS or unicodedata.decomposition(sign).startswith(_KEPT)
    return sign if kept else unicodedata.normalize("NFKC", sign)
