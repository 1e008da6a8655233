"""What a terminal needs: interrupts, bars, and untrusted text printed safely.

Control characters, escape sequences, and Unicode direction and zero-width marks appear as escapes. JSON and CSV output is not affected.
"""

from __future__ import annotations

import signal
import unicodedata
from queue import Empty, SimpleQueue
from typing import TextIO

_KEPT = "\n\t"
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories of invisible characters."""


def visible(text: str, kept: str = _KEPT) -> str:
    """Escape every invisible character of `text` except those in `kept`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in kept or unicodedata.category(one) not in _HIDDEN else _escaped(one) for one in text)


def in_line(text: str) -> str:
    """Escape `text` for a single line, including line breaks and tabs."""
    return visible(text, kept="")


def say(text: object, to: TextIO | None = None) -> None:
    """Print text with invisible characters escaped."""
    print(visible(str(text)), file=to)


def _escaped(one: str) -> str:
    if one in _NAMED:
        return _NAMED[one]
    code = ord(one)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def bar(share: float, width: int) -> str:
    """A share as a bar of blocks in `width` characters."""
    eighths = round(8 * width * share)
    return ("█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]).ljust(width, "░")


class Interrupts:
    """A signal to wait for. Its handler may interrupt the wait itself, where `Event.set` would deadlock."""

    def __init__(self, number: signal.Signals) -> None:
        self._come: SimpleQueue[int] = SimpleQueue()
        signal.signal(number, lambda came, _: self._come.put(came))

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the signal. Return whether it arrived."""
        try:
            self._come.get(timeout=seconds)
        except Empty:
            return False
        return True
