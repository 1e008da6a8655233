"""The lines by which a plain DuckDB client sees the lake, also while a run is writing."""

from __future__ import annotations

from pathlib import Path

from warehouse.catalogue import NAME, Place, attach_statement


def how_to_attach(home: Path) -> str:
    """SQL to paste into any DuckDB client of the same version: it attaches the lake in `home` to read and makes it the default.

    The extensions load by themselves where they are installed, which any use of `Lake` on the same account has done. Data in S3 needs a
    secret of the client's own before the ATTACH.
    """
    place = Place.of(home)
    lines = [f"LOAD {name};" for name in place.storage.extensions]
    return "\n".join([*lines, f"{attach_statement(place, read_only=True)};", f"USE {NAME};"])
