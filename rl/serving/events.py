"""Server-sent events."""

from __future__ import annotations

import json
from typing import Any


def event(data: dict[str, Any], name: str | None = None) -> str:
    """One event with JSON data."""
    return f"event: {name}\n" * (name is not None) + f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
