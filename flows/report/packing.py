"""What the page carries beside its text, small: JSON and scripts as deflated base64, which the browser inflates when it needs them.

Base64 holds no character that HTML could read, so hostile text in it can close no element.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any


def pack(text: str) -> str:
    """The text as UTF-8, deflated (zlib, RFC 1950), in base64. Half of a surrogate pair becomes a question mark."""
    return base64.b64encode(zlib.compress(text.encode("utf-8", errors="replace"), 6)).decode("ascii")


def pack_json(value: Any) -> str:
    """A value as JSON, packed."""
    return pack(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def unpack(packed: str) -> str:
    """The text again: what `pack` took."""
    return zlib.decompress(base64.b64decode(packed)).decode("utf-8")
