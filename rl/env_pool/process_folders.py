"""Temporary folders named after the process that made them: `flywheel-ray-4711-…` is of process 4711.

A process that is killed removes nothing. So the next one to start removes the folders whose process has ended, and no others.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"flywheel-[a-z]+-(\d+)-\w+")


def make_folder(what: str, place: Path) -> Path:
    """A new folder in `place` for `what` (small letters) of this process; those that killed processes left there are removed."""
    remove_leftovers(place)
    return Path(tempfile.mkdtemp(prefix=f"flywheel-{what}-{os.getpid()}-", dir=place))


def remove_leftovers(place: Path) -> None:
    """Remove the folders in `place` whose process has ended."""
    for folder in place.glob("flywheel-*"):
        named = _NAME.fullmatch(folder.name)
        if named and not Path("/proc", named[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)
