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
        if folder.name.isdigit() and (found := _origin(folder)) and found[0] == process:
            try:
                command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if __file__ in command:
                return command[command.index(__file__) + 1]
    return None


def end(token: str) -> None:
    """Ask the carriers of `token` and what they have started to end, and end those that do not."""
    ours = _families(carriers(token))
    _signal(list(ours), signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := _left(ours, token)) and time.monotonic() < deadline:
        time.sleep(0.2)
    _signal(left, signal.SIGKILL)


def _families(processes: list[int]) -> dict[int, str]:
    """The processes with their children, their children's, and so on, each with the moment of its start.

    Ray's agents write their title over their environment, and so carry no token any longer.
    """
    everyone = {int(folder.name): found for folder in Path("/proc").iterdir() if folder.name.isdigit() and (found := _origin(folder))}
    families, waiting = dict[int, str](), list(processes)
    while waiting:
        process = waiting.pop()
        if process in everyone and process not in families:
            families[process] = everyone[process][1]
            waiting += [child for child, (parent, _) in everyone.items() if parent == process]
    return families


def _origin(folder: Path) -> tuple[int, str] | None:
    """The parent of a process and the moment of its start; None where it has ended."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


def _left(ours: dict[int, str], token: str) -> list[int]:
    """Those of `ours` that are still there, and carriers of `token` that have come since."""
    there = [process for process, start in ours.items() if (found := _origin(Path(f"/proc/{process}"))) and found[1] == start]
    return [*there, *(process for process in carriers(token) if process not in ours)]


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
