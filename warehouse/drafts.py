"""Atomic writes and deletions by renaming, and detection of full disks."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

DRAFT = ".part"
"""Suffix of drafts: being written or deleted, or left by a killed process."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_SAID_FULL = ("no space left on device", "disk is full", "disk quota exceeded")


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """Yield a draft path that replaces `path` when the block succeeds and is removed when it fails. Creates parents."""
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
    """Delete a folder that no one reads: rename it, then remove it."""
    gone = folder.with_name(f"{folder.name}.old{DRAFT}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def is_draft(path: Path) -> bool:
    return path.name.endswith(DRAFT)


def is_full(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    return isinstance(error, duckdb.Error) and any(sign in str(error).lower() for sign in _SAID_FULL)


def _remove(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft)
    else:
        draft.unlink(missing_ok=True)
