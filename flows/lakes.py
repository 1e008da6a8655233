"""Opening the lake of a home for reading: never a lock, so a question never stops a run and a run never refuses a question."""

from __future__ import annotations

from pathlib import Path

from warehouse import Lake
from warehouse.errors import RequestError


def open_lake(home: Path) -> Lake:
    """The lake of `home`, read-only. Raises RequestError where there is none."""
    if not (home / "lake").is_dir():
        raise RequestError(f"{home} holds no lake; make one with `flywheel run --home {home}`, or name another folder with --home.")
    return Lake(home, read_only=True)
