"""Digests of content: the ids of everything that must be the same when its content is the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def digest(value: Any, length: int = 16) -> str:
    """Hexadecimal digest of a JSON-able value, equal for equal content whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def digest_bytes(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`, whole: bytes from outside may have been made so that a part of it is another's."""
    return hashlib.sha256(data).hexdigest()


def digest_files(folder: Path, pattern: str = "*.safetensors", length: int = 16) -> str:
    """Hexadecimal digest of the files in `folder` that match `pattern`, by name and content."""
    state = hashlib.sha256()
    for path in sorted(folder.glob(pattern)):
        state.update(path.name.encode())
        with path.open("rb") as file:
            state.update(hashlib.file_digest(file, "sha256").digest())
    return state.hexdigest()[:length]


def seed_from(*parts: Any) -> int:
    """A 31-bit seed that follows from `parts`, so that seeds flow from the configuration and from nothing else."""
    return int(digest(list(parts), 8), 16) & 0x7FFFFFFF
