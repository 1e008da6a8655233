"""Where public data lies: the folder that FLYWHEEL_DATA names, else a cache of the user; and what to do about a set that is not there."""

from __future__ import annotations

import os
from pathlib import Path

from warehouse.account import expanded
from warehouse.errors import RequestError
from warehouse.public_data.catalogue import DATA_SETS
from warehouse.public_data.sets import PublicDataSet

VARIABLE = "FLYWHEEL_DATA"


def data_root() -> Path:
    """The folder of all public data sets."""
    if named := os.environ.get(VARIABLE):
        return expanded(named)
    return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "agent-flywheel" / "data"


def data_set(name: str) -> PublicDataSet:
    """The data set called `name`. Raises RequestError where there is none."""
    if name not in DATA_SETS:
        raise RequestError(f"there is no public data set {name!r}; choose one of {', '.join(DATA_SETS)}.")
    return DATA_SETS[name]


def locate(name: str) -> Path:
    """The file or folder that the data set `name` is read from.

    Raises:
        RequestError: there is no such data set, or it is not here: the sentence has the command that fetches it.
    """
    data, root = data_set(name), data_root()
    place = data.place(root)
    if place is None:
        raise RequestError(
            f"the data set {name} is not in {root}: `flywheel data get {name}` fetches it ({in_bytes(data.size)}), "
            f"or let {VARIABLE} name the folder that has it."
        )
    return place


def in_bytes(size: int) -> str:
    """A size as people read it."""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
