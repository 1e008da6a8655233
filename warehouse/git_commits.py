"""Files of a commit in a foreign bare repository or bundle, without its history.

Git runs in an empty repository of its own that only borrows the other's objects, so nothing that the other's configuration or hooks name
is executed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from warehouse.errors import RequestError

_SECONDS = 300
_LISTED = re.compile(rb"100(?:644|755) blob ([0-9a-f]+) +(\d+)\t(.+)", re.DOTALL)
"""A regular file in `git ls-tree -l`; links and submodules are left out."""


def read_commit(repository: Path, commit: str, most_bytes: int, most_files: int) -> dict[str, bytes]:
    """Read the regular files of a commit by name.

    Args:
        repository: a bare repository, a folder with `.git`, or a bundle.
        commit: its full id.

    Raises:
        RequestError: there is no such commit, it is larger than allowed, or git is missing or fails.
    """
    if not re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", commit):
        raise RequestError(f"{commit!r:.80} is not the full id of a commit.")
    with tempfile.TemporaryDirectory() as own:
        _git(own, "init", "--quiet", "--bare", own)
        if repository.is_file():
            _git(own, "bundle", "unbundle", "--", str(repository.resolve()))
        else:
            folder = repository / ".git" if (repository / ".git").is_dir() else repository
            (Path(own) / "objects" / "info" / "alternates").write_text(f"{folder.resolve() / 'objects'}\n")
        listed = [_LISTED.fullmatch(entry) for entry in _git(own, "ls-tree", "-r", "-z", "-l", "--full-tree", commit).split(b"\0")]
        files = [(entry[3].decode(errors="replace"), entry[1], int(entry[2])) for entry in listed if entry is not None]
        if sum(size for _, _, size in files) > most_bytes or len(files) > most_files:
            raise RequestError(f"{commit} of {repository} has more than {most_bytes // 2**20} MiB, or {most_files:,} files.")
        contents = _git(own, "cat-file", "--batch", given=b"".join(blob + b"\n" for _, blob, _ in files))
    found: dict[str, bytes] = {}
    place = 0
    for name, _, size in files:
        start = contents.index(b"\n", place) + 1
        found[name] = contents[start : start + size]
        place = start + size + 1
    return found


def _git(own: str, *arguments: str, given: bytes = b"") -> bytes:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "GIT_DIR": own, "HOME": own, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    try:
        done = subprocess.run(["git", *arguments], input=given, capture_output=True, env=environment, timeout=_SECONDS, check=True)
    except FileNotFoundError as error:
        raise RequestError("git is not installed: install it, so that snapshots can be read from repositories.") from error
    except subprocess.TimeoutExpired as error:
        raise RequestError(f"git {arguments[0]} took more than {_SECONDS} seconds.") from error
    except subprocess.CalledProcessError as error:
        why = " ".join(error.stderr.decode(errors="replace").split())[-200:]
        raise RequestError(f"git {arguments[0]} failed: {why}") from error
    return done.stdout
