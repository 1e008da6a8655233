"""Process set-up: quiet libraries, safe imports, one folder for temporary files, and a reaper for child processes.

A process killed by SIGKILL cannot stop Prefect's server, Ray or engines. So a run starts a reaper: a small process that waits for the end
of a pipe, which closes however the run dies. The reaper then kills every process with the run's token in its environment, which are exactly
those that the run started on this machine, and removes their folder of temporary files.

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
    # Threads of torch that wait for each other give their core away. By default they spin, which is a sixth faster on an idle machine
    # and several times slower as soon as anything else wants a core: an engine, an environment, a second run.
    "OMP_WAIT_POLICY": "passive",
}
"""Environment variables read by libraries on import: no telemetry, no spinning, fewer log lines, our own progress line alone."""
NOISY = ("vllm", "EventsWorker", "APILogWorker")
"""Loggers that only report errors. The last two are threads of Prefect that warn of what they still have to send when a process ends."""
LONGEST_PLACE = 38
"""Letters of the path in which the folder of temporary files may lie: with a socket's name in it the whole may have 107."""
TOKEN = "FLYWHEEL_PROCESS_TOKEN"
SAFE_PATH = "PYTHONSAFEPATH"
"""Tells Python not to search the current folder, or a script's own, for modules."""
KEEP_ENVIRONMENT = "SPT_NOENV"
"""Tells setproctitle, in Ray and vLLM, not to overwrite the environment, and so the token, with the title."""
GRACE_SECONDS = 3.0
"""Time between SIGTERM and SIGKILL."""
EXIT_SECONDS = 3.0
"""Time that a run has to stop what it started."""

_reapers: list[subprocess.Popen[bytes]] = []
"""Holds the pipe open for as long as this process lives."""
_exits: list[threading.Timer] = []


def quiet_libraries() -> None:
    """Set the environment variables that the user has not set; call before the libraries are imported."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)


def import_safely() -> None:
    """From now on, Python processes started from here do not import modules from the current folder.

    `python -m` looks there first, so a `uvicorn.py` in the user's folder would run when a server starts. If this package is not installed
    but found on the search path, as in a checkout, PYTHONPATH passes its place on.
    """
    os.environ[SAFE_PATH] = "1"
    root, known = str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root in sys.path and root not in (*known, *site.getsitepackages(), site.getusersitepackages()):
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, known)])


def gather_files() -> Path:
    """Use a new folder, which is returned, for the temporary files of this process and its children.

    Killed processes leave vLLM's sockets and trainers' drafts there; leftovers of killed runs are removed first. Compiled code keeps its
    place, since every run can use it.
    """
    from rl.ray_runtime import make_folder, remove_leftovers  # the reaper runs this file by itself, without the package

    place = Path(tempfile.gettempdir()).resolve()
    if len(str(place)) > LONGEST_PLACE:
        place = Path("/tmp")
    remove_leftovers(Path("/tmp"))  # Ray's, wherever ours lies
    folder = make_folder("files", place)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place / f"torchinductor_{os.getuid()}"))
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # it is read from the environment again
    return folder


def start_reaper() -> None:
    """Start this process's reaper, once; call before any other process is started."""
    if TOKEN in os.environ:
        return
    token = secrets.token_hex(16)
    command = [sys.executable, "-I", "-S", __file__, token, str(gather_files())]
    _reapers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True))
    os.environ[TOKEN] = token
    os.environ[KEEP_ENVIRONMENT] = "1"


def exit_after(seconds: float = EXIT_SECONDS) -> None:
    """End this process after some seconds, unless `cancel_exit` is called before."""
    if _exits:
        return
    timer = threading.Timer(seconds, os._exit, [128 + signal.SIGTERM])
    timer.daemon = True
    timer.start()
    _exits.append(timer)


def cancel_exit() -> None:
    """Cancel `exit_after`."""
    while _exits:
        _exits.pop().cancel()


def carriers(token: str) -> list[int]:
    """The ids of the processes with `token` in their environment."""
    mark = f"{TOKEN}={token}".encode()
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended, or belongs to another user
                continue
    return found


def end(token: str) -> None:
    """Send SIGTERM to the carriers of `token`, and after `GRACE_SECONDS` SIGKILL to those that are left."""
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
