"""Foreign text on a terminal: control characters, escape sequences and Unicode direction and zero-width marks are shown as escapes.

JSON and CSV keep them as they are.
"""

from __future__ import annotations

import unicodedata
from typing import TextIO

_KEPT = "\n\t"
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories without a visible form."""


def visible(text: str, kept: str = _KEPT) -> str:
    """`text` with every invisible character but `kept` written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in kept or unicodedata.category(one) not in _HIDDEN else _escaped(one) for one in text)


def in_line(text: str) -> str:
    """`text` for one line: line ends and tabs are escaped too."""
    return visible(text, kept="")


def say(text: object, to: TextIO | None = None) -> None:
    """Print text safely."""
    print(visible(str(text)), file=to)


def _escaped(one: str) -> str:
    if one in _NAMED:
        return _NAMED[one]
    code = ord(one)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
