"""Rows as a file of lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def written(path: Path, *rows: Any) -> Path:
    """`path` with a line for each row: a text as it is, and anything else as JSON."""
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path
