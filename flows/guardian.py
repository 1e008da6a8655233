"""A guardian: when this process dies, however it dies, what it started dies too.

SIGKILL leaves a process no time to stop Prefect's temporary server, Ray or an engine, and them none to remove their sockets. So a
run starts a small companion that waits for the end of a pipe. The pipe ends when the run does; then the companion ends every process that
carries the run's token in its environment, which is every process that the run started on this machine and no other, and removes the
folder in which all of them kept their temporary files.

A run that is asked to end stops its engines itself. Where that takes too long, its process ends all the same and leaves the rest to the
companion: whoever cancels a run has the machine back within ten seconds.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

TOKEN = "FLYWHEEL_PROCESS_TOKEN"
KEEP_ENVIRONMENT = "SPT_NOENV"
"""Heard by setproctitle, in Ray and in vLLM: a process that takes a title does not write it over its environment, and so its token."""
GRACE_SECONDS = 3.0
"""How long they have to end by themselves after SIGTERM."""
FAREWELL_SECONDS = 3.0
"""How long a run that is asked to end may take to stop what it started."""


def start_guardian() -> None:
    """Start this process's companion, once; called before anything else is started."""
    if TOKEN in os.environ:
        return
    from flows.temporary import gather_files  # the companion runs this file by itself, without the package

    token = secrets.token_hex(16)
    command = [sys.executable, "-I", "-S", __file__, token, str(gather_files())]
    _keep.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True))
    os.environ[TOKEN] = token
    os.environ[KEEP_ENVIRONMENT] = "1"


_keep: list[subprocess.Popen[bytes]] = []
"""Holds the pipe open for as long as this process lives."""


def end_soon() -> None:
    """End this process in a few seconds, whatever it does, unless `stay` is called before."""
    if _farewells:
        return
    timer = threading.Timer(FAREWELL_SECONDS, os._exit, [128 + signal.SIGTERM])
    timer.daemon = True
    timer.start()
    _farewells.append(timer)


def stay() -> None:
    """Take `end_soon` back: everything has been stopped."""
    while _farewells:
        _farewells.pop().cancel()


_farewells: list[threading.Timer] = []


def carriers(token: str) -> list[int]:
    """The processes on this machine that were started with `token` in their environment."""
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
    """The token that everything bears which `process` started; None where it is no run, or its guardian is not there yet."""
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
    """Ask the carriers of `token` to end, and end those that do not."""
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
