"""Opening the lake of a home: to read without a lock, so that a question never stops a run; to keep it, as one writer among others."""

from __future__ import annotations

from pathlib import Path

from warehouse import Lake
from warehouse.errors import RequestError


def open_lake(home: Path) -> Lake:
    """The lake of `home`, read-only. Raises RequestError where there is none."""
    _check(home)
    return Lake(home, read_only=True)


def open_to_keep(home: Path) -> Lake:
    """The lake of `home` for its upkeep. Raises RequestError where there is none: upkeep makes no lake."""
    _check(home)
    return Lake(home)


def _check(home: Path) -> None:
    if not (home / "lake").is_dir():
        raise RequestError(f"{home} holds no lake; make one with `flywheel run --home {home}`, or name another folder with --home.")
