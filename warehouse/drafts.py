"""Files and folders that are written whole or not at all: they are filled and emptied under another name, and a rename is one step of the
file system. And how an error says that a disk is full.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

DRAFT = ".part"
"""What the name of a draft ends in: it is being written or deleted, or a kill left it so."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_SAID_FULL = ("no space left on device", "disk is full", "disk quota exceeded")


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A place beside `path` to write a file or folder to, which takes the name `path` when the block ends, in the place of what is there.

    What is written of it is removed where the block fails. Folders above are made.
    """
    draft = path.with_name(path.name + DRAFT)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _remove(draft)
        yield draft
        if path.is_dir():
            remove_folder(path)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            _remove(draft)
        raise


def remove_folder(folder: Path) -> None:
    """Delete a folder, of which nothing reads a part meanwhile."""
    gone = folder.with_name(f"{folder.name}.old{DRAFT}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def is_draft(path: Path) -> bool:
    """Whether a file or folder is not whole."""
    return path.name.endswith(DRAFT)


def is_full(error: BaseException) -> bool:
    """Whether a disk that is full is why."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return isinstance(error, duckdb.Error) and any(sign in str(error).lower() for sign in _SAID_FULL)


def _remove(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft)
    else:
        draft.unlink(missing_ok=True)
