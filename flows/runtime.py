"""What a process of ours needs before it works: quiet libraries, safe imports, one folder for temporary files, a reaper of what it starts.

SIGKILL leaves a process no time to stop Prefect's temporary server, Ray or an engine, and them none to remove their sockets. So a run
starts a reaper: a small companion process that waits for the end of a pipe. The pipe ends when the run does, however it dies; then the
reaper ends every process that carries the run's token in its environment, which is every process that the run started on this machine and
no other, and removes the folder in which all of them kept their temporary files.

A run that is asked to end stops its engines itself. Where that takes too long, `exit_after` ends its process all the same and leaves the
rest to the reaper: whoever cancels a run has the machine back within ten seconds.
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
    # Threads of torch that wait for each other give their core away. By default they spin, which is a sixth faster on an idle machine
    # and several times slower as soon as anything else wants a core: an engine, an environment, a second run.
    "OMP_WAIT_POLICY": "passive",
}
"""The environment that libraries read when they are imported: no telemetry, no spinning, fewer log lines."""
NOISY = ("vllm", "EventsWorker", "APILogWorker")
"""Loggers that only report errors. The last two are threads of Prefect that warn of what they still have to send when a process ends."""
LONGEST_PLACE = 38
"""Letters of the path in which the folder of temporary files may lie: with a socket's name in it the whole may have 107."""
TOKEN = "FLYWHEEL_PROCESS_TOKEN"
SAFE_PATH = "PYTHONSAFEPATH"
"""Heard by Python: neither the current folder nor a script's own is searched for modules."""
KEEP_ENVIRONMENT = "SPT_NOENV"
"""Heard by setproctitle, in Ray and in vLLM: a process that takes a title does not write it over its environment, and so its token."""
GRACE_SECONDS = 3.0
"""How long processes have to end by themselves after SIGTERM."""
EXIT_SECONDS = 3.0
"""How long a run that is asked to end may take to stop what it started."""

_reapers: list[subprocess.Popen[bytes]] = []
"""Holds the pipe open for as long as this process lives."""
_exits: list[threading.Timer] = []


def quiet_libraries() -> None:
    """Set in the environment what the user has not set otherwise; called before the libraries are imported."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)


def import_safely() -> None:
    """From here on, no Python that this process starts imports what lies in the folder that it is started in.

    `python -m` looks there first: a `uvicorn.py` beside the user would run as soon as a server is started. Where this process has found
    this package by its own search path alone, as in a checkout that is not installed, what it starts is told where it is.
    """
    os.environ[SAFE_PATH] = "1"
    root, known = str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root in sys.path and root not in (*known, *site.getsitepackages(), site.getusersitepackages()):
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, known)])


def gather_files() -> Path:
    """From here on this process, and all that it starts, keep temporary files in a new folder, which is returned.

    vLLM leaves sockets and rendezvous files where temporary files go, and trainers their drafts, whenever a process is killed. What killed
    runs left on this machine is removed before. Compiled code stays where it was: it is of use to every run.
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
    """Start this process's reaper, once; called before anything else is started."""
    if TOKEN in os.environ:
        return
    token = secrets.token_hex(16)
    command = [sys.executable, "-I", "-S", __file__, token, str(gather_files())]
    _reapers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True))
    os.environ[TOKEN] = token
    os.environ[KEEP_ENVIRONMENT] = "1"


def exit_after(seconds: float = EXIT_SECONDS) -> None:
    """End this process after some seconds, whatever it does then, unless `cancel_exit` is called before."""
    if _exits:
        return
    timer = threading.Timer(seconds, os._exit, [128 + signal.SIGTERM])
    timer.daemon = True
    timer.start()
    _exits.append(timer)


def cancel_exit() -> None:
    """Take `exit_after` back: everything has been stopped."""
    while _exits:
        _exits.pop().cancel()


def carriers(token: str) -> list[int]:
    """The ids of the processes on this machine that were started with `token` in their environment."""
    mark = f"{TOKEN}={token}".encode()
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it ended meanwhile, or belongs to somebody else
                continue
    return found


def token_of(process: int) -> str | None:
    """The token of everything that `process` started; None where it is no run, or its reaper is not there yet."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if parent == str(process) and __file__ in command:
                return command[command.index(__file__) + 1]
    return None


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
