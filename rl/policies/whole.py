"""Folders that are whole or not there: they are filled and emptied under another name, and a rename is one step of the file system."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

DRAFT = ".draft"
"""What the name of a folder that is no whole one ends in."""


def write_whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Have `write` fill a folder that then becomes `folder`, in the place of one that is there."""
    draft = folder.with_name(folder.name + DRAFT)
    shutil.rmtree(draft, ignore_errors=True)
    write(draft)
    if folder.exists():
        remove_whole(folder)
    draft.rename(folder)


def remove_whole(folder: Path) -> None:
    """Delete a folder, of which nobody sees a part meanwhile."""
    gone = folder.with_name(f"{folder.name}.old{DRAFT}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def is_draft(folder: Path) -> bool:
    """Whether it is no whole folder: it is being written or deleted, or a kill left it so."""
    return folder.name.endswith(DRAFT)
