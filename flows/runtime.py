"""Process set-up: quiet libraries, safe imports, a folder for temporary files, and a reaper for child processes.

A process killed by SIGKILL cannot stop Prefect's server, Ray or engines. So each run starts a reaper, a small process that waits for a pipe
to close, which happens however the run dies. The reaper then kills every process on this machine with the run's token in its environment
and removes the run's temporary folder.

A run that is asked to shut down stops its engines itself. If that takes too long, `exit_after` ends the process and leaves the rest to the
reaper, so that a cancelled run frees the machine within ten seconds.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SETTINGS = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TQDM_DISABLE": "1",
    # By default, waiting threads of torch spin: a sixth faster on an idle machine, but several times slower as soon as an engine, an
    # environment or a second run needs the core. Passive threads yield it.
    "OMP_WAIT_POLICY": "passive",
}
"""Environment variables that libraries read on import: no telemetry, no spinning threads, fewer log lines, no progress bars."""
NOISY = ("vllm", "EventsWorker", "APILogWorker")
"""Loggers restricted to errors. The last two are Prefect threads that warn about unsent data when a process ends."""
LONGEST_PLACE = 38
"""Maximum path length of the parent of the temporary folder: socket paths inside must not exceed 107 characters."""
TOKEN = "FLYWHEEL_PROCESS_TOKEN"
SAFE_PATH = "PYTHONSAFEPATH"
"""Stops Python from searching the current folder, or a script's folder, for modules."""
KEEP_ENVIRONMENT = "SPT_NOENV"
"""Stops setproctitle (in Ray and vLLM) from overwriting the environment, and so the token, with the title."""
GRACE_SECONDS = 3.0
"""Time between SIGTERM and SIGKILL."""
EXIT_SECONDS = 3.0
"""Time for a run to stop its children."""

_reapers: list[subprocess.Popen[bytes]] = []
"""Reaper processes; their pipes stay open as long as this process lives."""
_exits: list[threading.Timer] = []


def quiet_libraries() -> None:
    """Set the environment variables that the user has not set. Call before importing the libraries."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)


def import_safely() -> None:
    """Stop child Python processes from importing modules from the current folder.

    `python -m` searches it first, so a `uvicorn.py` there would run instead of the server. If this package is not installed but on the
    search path, as in a checkout, PYTHONPATH passes its location on.
    """
    os.environ[SAFE_PATH] = "1"
    root, known = str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root in sys.path and root not in (*known, *site.getsitepackages(), site.getusersitepackages()):
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, known)])


def gather_files() -> Path:
    """Create and return a folder for the temporary files of this process and its children.

    Removes leftovers of killed runs, such as vLLM's sockets and trainers' drafts. Compiled code stays where every run can use it.
    """
    from rl.ray_runtime import make_folder, remove_leftovers  # the reaper runs this file alone, without the package

    place = Path(tempfile.gettempdir()).resolve()
    if len(str(place)) > LONGEST_PLACE:
        place = Path("/tmp")
    remove_leftovers(Path("/tmp"))  # Ray's leftovers are always in /tmp
    folder = make_folder("files", place)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place / f"torchinductor_{os.getuid()}"))
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # makes tempfile read TMPDIR again
    return folder


def start_reaper() -> None:
    """Start this process's reaper once. Call before starting any other process."""
    if TOKEN in os.environ:
        return
    token = secrets.token_hex(16)
    command = [sys.executable, "-I", "-S", __file__, token, str(gather_files())]
    _reapers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True))
    os.environ[TOKEN] = token
    os.environ[KEEP_ENVIRONMENT] = "1"


def exit_after(seconds: float = EXIT_SECONDS) -> None:
    """End this process after `seconds` unless `cancel_exit` is called before."""
    if _exits:
        return
    timer = threading.Timer(seconds, os._exit, [128 + signal.SIGTERM])
    timer.daemon = True
    timer.start()
    _exits.append(timer)


def cancel_exit() -> None:
    while _exits:
        _exits.pop().cancel()


def carriers(token: str) -> list[int]:
    """Return the ids of the processes with `token` in their environment."""
    mark = f"{TOKEN}={token}".encode()
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended or belongs to another user
                continue
    return found


def end(token: str) -> None:
    """Send SIGTERM to the carriers of `token`, and SIGKILL to the remaining ones after `GRACE_SECONDS`."""
    _signal(carriers(token), signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while carriers(token) and time.monotonic() < deadline:
        time.sleep(0.2)
    _signal(carriers(token), signal.SIGKILL)


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end(sys.argv[1])
    shutil.rmtree(sys.argv[2], ignore_errors=True)
