"""Surroundings that libraries expect of an account: a home directory that exists, and a user name.

Containers and job schedulers often run without them, and then DuckDB, Prefect, Ray and torch fail, each with a message of its own.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from functools import cache
from pathlib import Path

from warehouse.errors import RequestError


def ensure_home() -> None:
    """Set HOME and USER for this process and its children where the account has none that works.

    The replacement is a private folder under the temporary directory, the same for every process of the account.

    Raises:
        RequestError: that folder belongs to another user, or others may write to it.
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
    """Whether files can be made in a folder; they are tried, for permissions say nothing to root and nothing about `/proc`."""
    try:
        with tempfile.TemporaryFile(dir=home):
            return Path(home).is_absolute()
    except OSError:
        return False


def expanded(path: str) -> Path:
    """A path in which `~` stands for a home; that of a user who is not known stays as it is written."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises RuntimeError for such a user


def _private_folder(user: int) -> Path:
    folder = Path(tempfile.gettempdir()) / f"flywheel-home-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
        raise RequestError(f"{folder} must be a folder that only user {user} can write to: set HOME to a folder of your own.")
    return folder
