"""A run's temporary files lie in one folder of its own, which goes with the run.

vLLM leaves sockets and rendezvous files where temporary files go, and trainers their drafts, whenever a process is killed.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rl.hosting.own_folders import make_folder, remove_leftovers

LONGEST_PLACE = 38
"""Letters of the path in which the folder may lie: with a socket's name in it the whole may have 107."""


def gather_files() -> Path:
    """From here on this process, and all that it starts, keep temporary files in a new folder, which is returned.

    What killed runs left on this machine is removed before. Compiled code stays where it was: it is of use to every run.
    """
    place = Path(tempfile.gettempdir()).resolve()
    if len(str(place)) > LONGEST_PLACE:
        place = Path("/tmp")
    remove_leftovers(Path("/tmp"))  # Ray's, wherever ours lies
    folder = make_folder("files", place)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place / f"torchinductor_{os.getuid()}"))
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # it is read from the environment again
    return folder
