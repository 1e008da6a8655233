"""A disk that is full for a moment: really filled, by a file, and emptied again.

Only a filesystem that holds nothing but the drill may be filled, and only a small one: a tmpfs takes the machine's memory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LARGEST_GIB = 4.0
LEAST_BYTES = 4096
"""A piece smaller than this is not tried any more: the disk is full."""


def why_not_filled(folder: Path) -> str | None:
    """Why the disk under `folder` cannot be filled, in a sentence that says how to get one that can; None where it can."""
    total = shutil.disk_usage(folder).total
    if os.path.ismount(folder) and total <= LARGEST_GIB * 1024**3:
        return None
    return (
        f"No fault fills a disk: {folder} is no filesystem of its own of at most {LARGEST_GIB:g} GiB; to have one, "
        f"`mount -t tmpfs -o size=1g tmpfs {folder}` before the drill."
    )


@contextmanager
def full_disk(folder: Path) -> Iterator[int]:
    """No byte is free under `folder` until the block is left; gives the bytes that it took."""
    file = folder / "filling"
    try:
        yield _fill(file)
    finally:
        file.unlink(missing_ok=True)


def _fill(file: Path) -> int:
    """Grow `file` by halves of what is free until nothing fits any more."""
    taken = 0
    with file.open("wb") as filling:
        piece = shutil.disk_usage(file.parent).free
        while piece >= LEAST_BYTES:
            try:
                os.posix_fallocate(filling.fileno(), taken, piece)
                taken += piece
            except OSError:  # ENOSPC: some of it is kept for others
                piece //= 2
    return taken
