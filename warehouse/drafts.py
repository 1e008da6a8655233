"""Atomic writes: a file or folder is written and deleted under another name, and renamed in one step. And errors of a full disk."""

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
    """A path to write a file or folder to, which replaces `path` when the block ends and is removed when it fails. Parents are created."""
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
    """Delete a folder that no one is reading."""
    gone = folder.with_name(f"{folder.name}.old{DRAFT}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def is_draft(path: Path) -> bool:
    """Whether a file or folder is incomplete."""
    return path.name.endswith(DRAFT)


def is_full(error: BaseException) -> bool:
    """Whether an error means that the disk is full."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return isinstance(error, duckdb.Error) and any(sign in str(error).lower() for sign in _SAID_FULL)


def _remove(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft)
    else:
        draft.unlink(missing_ok=True)
