"""Process 1 of the sandbox: starts the program, takes its output, keeps it to its limits and ends with all that it left.

Part of the launcher. It is process 1 of its namespace: no signal from within reaches it, orphans become its children, and when it
ends the kernel kills every process that is left.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping

TYPE_CHECKING = False  # as in launch.py
if TYPE_CHECKING:
    from typing import Any

_TICK_SECONDS = 0.02
"""How often memory is looked at."""
_CHUNK = 65_536


class Output:
    """The output read from one pipe, up to a limit."""

    def __init__(self, descriptor: int, limit: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.data = bytearray()
        self.open = True
        self._limit = limit

    @property
    def too_much(self) -> bool:
        """Whether the program wrote more than the limit."""
        return len(self.data) > self._limit

    @property
    def kept(self) -> bytes:
        """The beginning, within the limit."""
        return bytes(self.data[: self._limit])

    def read(self) -> bool:
        """Read what is available, at most a chunk. Returns whether there was any."""
        try:
            piece = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return False
        self.open = bool(piece)
        self.data += piece[: self._limit + 1 - len(self.data)]
        return bool(piece)


def supervise(program: int, outputs: tuple[Output, Output], limits: Mapping[str, Any], watched: bool) -> dict[str, Any]:
    """Wait for the process `program` to end, or end it at a limit. Returns the reply for the host.

    `watched` says whether this process has a namespace of its own, whose memory it can count.
    """
    started = time.monotonic()
    deadline = started + limits["wall_seconds"]
    handle = os.pidfd_open(program)
    cut = status = None
    while cut is None and status is None:
        waiting = [handle, *(output.descriptor for output in outputs if output.open)]
        select.select(waiting, [], [], min(_TICK_SECONDS, max(0.0, deadline - time.monotonic())))
        for output in outputs:
            if output.open:
                output.read()
        status = _reap(program)
        cut = None if status is not None else _limit_passed(outputs, deadline, limits, watched)
    while status is not None and any(output.open and not output.too_much and output.read() for output in outputs):
        pass  # what the program had written before it ended
    if any(output.too_much for output in outputs):
        cut = "output_limit"
    outcome, exit_status = _ending(cut, status)
    return {
        "outcome": outcome,
        "status": exit_status,
        "seconds": time.monotonic() - started,
        "stdout": outputs[0].kept,
        "stderr": outputs[1].kept,
    }


def _reap(program: int) -> int | None:
    """Wait for every child that has ended. Returns the wait status of `program` where it is among them."""
    status = None
    while True:
        try:
            child, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if child == 0:
            return status
        if child == program:
            status = ended


def _limit_passed(outputs: tuple[Output, Output], deadline: float, limits: Mapping[str, Any], watched: bool) -> str | None:
    if any(output.too_much for output in outputs):
        return "output_limit"
    if time.monotonic() >= deadline:
        return "timed_out"
    if watched and _memory_exceeds(limits["memory_bytes"]):
        return "out_of_memory"
    return None


def _ending(cut: str | None, status: int | None) -> tuple[str, int | None]:
    """Outcome and exit status; a program that a signal ended has that signal's number, negative."""
    if status is None:
        return cut or "killed", None
    code = os.waitstatus_to_exitcode(status)
    if cut is not None:
        return cut, code
    if -code == signal.SIGXCPU:
        return "timed_out", code
    return ("killed" if code < 0 else "finished"), code


def _memory_exceeds(limit: int) -> bool:
    """Whether all processes but this one hold more than `limit` bytes; shared pages are counted once near the limit."""
    others = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    page = os.sysconf("SC_PAGESIZE")
    if sum(_resident_pages(name) for name in others) * page <= limit:
        return False
    return sum(_proportional_bytes(name) for name in others) > limit


def _resident_pages(process: str) -> int:
    fields = _read_process_file(process, "statm").split()
    return int(fields[1]) if fields else 0


def _proportional_bytes(process: str) -> int:
    for line in _read_process_file(process, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _read_process_file(process: str, name: str) -> bytes:
    """A file of a process in /proc, empty where the process is gone."""
    try:
        with open(f"/proc/{process}/{name}", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""
