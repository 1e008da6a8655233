"""Content digests, from which ids and seeds are derived."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any


def digest(value: Any, length: int = 16) -> str:
    """Hexadecimal digest of a JSON-serialisable value, independent of key order."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def digest_bytes(data: bytes) -> str:
    """Full-length hexadecimal SHA-256 of `data`; prefixes of foreign bytes could be made to collide."""
    return hashlib.sha256(data).hexdigest()


def digest_files(folder: Path, pattern: str = "*.safetensors", length: int = 16) -> str:
    """Hexadecimal digest of the names and contents of files in `folder` that match `pattern`."""
    state = hashlib.sha256()
    for path in sorted(folder.glob(pattern)):
        state.update(path.name.encode())
        with path.open("rb") as file:
            state.update(hashlib.file_digest(file, "sha256").digest())
    return state.hexdigest()[:length]


@cache
def code_digest() -> str:
    """Hexadecimal digest of the source of this project's packages: which code made a result."""
    root = Path(__file__).parents[1]
    return digest([digest_files(root / package, "**/*.py") for package in ("warehouse", "eval", "rl", "synth", "flows")], length=12)


def seed_from(*parts: Any) -> int:
    """A 31-bit seed derived from `parts`."""
    return int(digest(list(parts), 8), 16) & 0x7FFFFFFF
