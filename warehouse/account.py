"""Provide a home directory and user name, which DuckDB, Prefect, Ray and torch require and containers often lack."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from functools import cache
from pathlib import Path

from warehouse.errors import RequestError


def ensure_home() -> None:
    """Set HOME and USER for this process and its children if the account has no working ones.

    The replacement is a private folder in the temporary directory, shared by the account's processes. Raises RequestError if that folder
    belongs to another user or is writable by others.
    """
    home, user = os.environ.get("HOME"), os.getuid()
    if not home or not _works(home):
        os.environ["HOME"] = str(_private_folder(user))
    if not any(os.environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):
        try:
            pwd.getpwuid(user)
        except KeyError:
            os.environ["USER"] = f"uid{user}"


@cache
def _works(home: str) -> bool:
    """Whether files can be created in a folder; permissions are unreliable for root and `/proc`."""
    try:
        with tempfile.TemporaryFile(dir=home):
            return Path(home).is_absolute()
    except OSError:
        return False


def expanded(path: str) -> Path:
    """Expand `~`; the path of an unknown user is returned unchanged."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises RuntimeError for such a user


def _private_folder(user: int) -> Path:
    folder = Path(tempfile.gettempdir()) / f"flywheel-home-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
        raise RequestError(f"{folder} must be a folder that only user {user} can write to: set HOME to a folder of your own.")
    return folder
