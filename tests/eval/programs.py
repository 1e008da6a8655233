"""Programs in one text file: each begins with a line `=== name`, or `=== name | note, note`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sample:
    """A program and what its heading notes about it."""

    source: str
    notes: frozenset[str]


def read_programs(path: Path) -> dict[str, Sample]:
    """The programs of a file by name."""
    found = {}
    for part in path.read_text().split("=== ")[1:]:
        heading, _, source = part.partition("\n")
        name, _, notes = heading.partition(" | ")
        found[name] = Sample(source.rstrip("\n") + "\n", frozenset(filter(None, notes.split(", "))))
    return found
