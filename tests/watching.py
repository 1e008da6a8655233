"""Commands whose files are watched while they run, also those that they delete again."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path


def run_watched(command: Sequence[str], folder: Path, pattern: str, seconds: float) -> set[str]:
    """Run a command to its end, and return the paths that matched `pattern` below `folder` on the way; fails where it does."""
    deadline, found = time.monotonic() + seconds, set[str]()
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as running:
        while running.poll() is None:
            found |= {path.relative_to(folder).as_posix() for path in folder.glob(pattern)}
            if time.monotonic() > deadline:
                running.kill()
            time.sleep(0.05)
        log.seek(0)
        assert running.returncode == 0, log.read()[-3000:]
    return found
