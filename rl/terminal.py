"""Foreign text on a terminal: what would move the cursor, set a title, or turn the line around is shown instead of obeyed.

Control characters, escape sequences and Unicode's marks of direction and of no width are written as escapes, `\\x1b` or `\\u202e`. What
programs read, JSON and CSV, keeps them as they are.
"""

from __future__ import annotations

import unicodedata
from typing import TextIO

_KEPT = "\n\t"
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories of Unicode that have no form of their own: control, format, surrogate, private, unassigned, separators of lines."""


def visible(text: str, kept: str = _KEPT) -> str:
    """`text` with everything unseen written as an escape, but for the characters `kept`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in kept or unicodedata.category(one) not in _HIDDEN else _escaped(one) for one in text)


def in_line(text: str) -> str:
    """`text` for one line: line ends and tabs are escapes too."""
    return visible(text, kept="")


def say(text: object, to: TextIO | None = None) -> None:
    """Print a line or more, in which nothing foreign is obeyed by the terminal."""
    print(visible(str(text)), file=to)


def _escaped(one: str) -> str:
    if one in _NAMED:
        return _NAMED[one]
    code = ord(one)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
