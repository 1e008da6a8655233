"""The launcher: a process that isolates the program, starts it, supervises it and reports how it ended.

It reads one request from standard input and writes one reply to standard output, both with Python's `marshal` (host and launcher are the
same interpreter and trust each other). It runs under `python -I -S` and imports little, because every program waits for its start.

    launcher --fork--> process 1 of the new namespaces --fork--> the program
                       mounts, output, limits                  no privileges, rlimits, seccomp, exec

The program leaves the user namespace of process 1 for its own: there it has no capability, its processes are counted separately, and it
cannot reach process 1. If the host's user is root, the program becomes `nobody` first.

Process 1 supervises: no signal from within its namespace reaches it, orphans become its children, and when it ends the kernel kills every
remaining process.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping

from eval.sandbox import kernel, mounts
from eval.sandbox.kernel import call_filter

TYPE_CHECKING = False  # importing typing would take a fifth of the launcher's start-up time
if TYPE_CHECKING:
    from typing import Any, NoReturn

NOBODY = 65_534
"""The program's host user if the host's user is root."""
INSIDE = 1000
"""The program's user and group as it sees them."""
CHANNEL = 3
"""Descriptor of the program's channel, if the request has one."""
HOST = "sandbox"
"""Host name as the program sees it."""
SIGNALS = 256
"""Maximum queued signals and timers of all its processes; timers use kernel memory that nothing else limits."""
_ALL_USERS = ["0", "0", "4294967295"]
_HIGH = 64
"""Descriptors from here up are the launcher's own and close when the program is executed."""
_MISSING, _REFUSED = "missing", "refused"


def main() -> None:
    request = marshal.loads(sys.stdin.buffer.read())
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        # A Python handler would be inherited, and would let signals from within the namespace reach process 1.
        signal.signal(number, signal.SIG_DFL)
    if request["isolation"] == "none":
        _report(_run(request, None))
        return
    try:
        owner = _enter_namespaces()
    except (OSError, KeyError) as error:
        _report({_REFUSED: str(error)})
        return
    _run_in_namespaces(request, owner)


def _enter_namespaces() -> int | None:
    """Enter new namespaces. Return the host user that programs run as, or None for the current one."""
    call_filter(os.uname().machine)
    if os.geteuid() == 0 and _read("/proc/self/uid_map").split() == _ALL_USERS:
        kernel.unshare(kernel.NAMESPACES)
        return NOBODY
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.NAMESPACES)
    _map_user(user, user, group, group)
    return None


def _run_in_namespaces(request: Mapping[str, Any], owner: int | None) -> None:
    """Fork process 1 of the namespaces, which does the rest, and wait for it."""
    alive, kept_open = os.pipe()
    first = os.fork()
    if first:
        os.close(alive)
        os.waitpid(first, 0)
        return
    os.close(kept_open)
    kernel.die_with_parent(signal.SIGKILL)
    if select.select([alive], [], [], 0)[0]:  # the launcher had already ended
        os._exit(1)
    limits = request["limits"]
    try:
        kernel.name_machine(HOST)
        mounts.change_root(request["view"], limits["disk_bytes"], limits["max_files"], owner)
    except OSError as error:
        _report({_REFUSED: str(error)})
        os._exit(0)
    kernel.set_dumpable(False)
    _report(_run(request, owner))
    os._exit(0)


def _run(request: Mapping[str, Any], owner: int | None) -> dict[str, Any]:
    isolated = request["isolation"] != "none"
    folder = mounts.HOME if isolated else request["folder"]
    try:
        _write_files(folder, request["files"], owner)
    except OSError as error:
        return {_MISSING: f"the files given do not fit into the sandbox: {error.strerror}"}
    (out, out_end), (err, err_end), (trouble, trouble_end) = os.pipe(), os.pipe(), os.pipe()
    program = os.fork()
    if program == 0:
        _exec_program(request, folder, owner, (out_end, err_end, trouble_end))
    for end in (out_end, err_end, trouble_end):
        os.close(end)
    if request["channel"] is not None:
        os.close(request["channel"])
    with os.fdopen(trouble, "rb") as file:
        failure = file.read()  # returns at the program's exec, which closes the pipe's other end
    if failure:
        return marshal.loads(failure)
    limit = request["limits"]["output_bytes"]
    reply = supervise(program, (Output(out, limit), Output(err, limit)), request["limits"], isolated)
    if not isolated:
        _kill_group(program)
    return reply


def _exec_program(request: Mapping[str, Any], folder: str, owner: int | None, ends: tuple[int, int, int]) -> NoReturn:
    """Replace this process with the program. A failure is written to the last of `ends`."""
    trouble = ends[2]
    try:
        os.setsid()
        trouble = _arrange_descriptors(request, ends)
        os.chdir(folder)
        if request["isolation"] != "none":
            _give_up_privileges(owner)
        _limit_resources(request["limits"])
        if request["isolation"] != "none":
            kernel.gain_no_privileges()
            kernel.filter_calls(call_filter(os.uname().machine))
        try:
            os.execvpe(request["argv"][0], request["argv"], request["environment"])
        except OSError as error:
            os.write(trouble, marshal.dumps({_MISSING: f"{request['argv'][0]} cannot be run in the sandbox: {error.strerror}"}))
    except BaseException as error:  # this process must never continue as a copy of the launcher
        os.write(trouble, marshal.dumps({_REFUSED: f"{type(error).__name__}: {error}"}))
    finally:
        os._exit(1)


def _arrange_descriptors(request: Mapping[str, Any], ends: tuple[int, int, int]) -> int:
    """Give the program its standard streams, its channel and no other descriptor. Return the descriptor for failures."""
    out, err, trouble = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _HIGH) for end in ends)
    sources = [_standard_input(request["stdin"]), out, err]
    if request["channel"] is not None:
        sources.append(fcntl.fcntl(request["channel"], fcntl.F_DUPFD_CLOEXEC, _HIGH))
        os.close(request["channel"])
    for number, source in enumerate(sources):
        os.dup2(source, number)
    os.closerange(len(sources), _HIGH)
    return trouble


def _standard_input(data: bytes) -> int:
    descriptor = os.memfd_create("stdin")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)


def _give_up_privileges(owner: int | None) -> None:
    if owner is not None:
        os.setgroups([])
        os.setresgid(owner, owner, owner)
        os.setresuid(owner, owner, owner)
    user, group = os.geteuid(), os.getegid()
    kernel.set_dumpable(True)  # otherwise its user map belongs to root and cannot be written
    kernel.unshare(kernel.CLONE_NEWUSER)
    _map_user(INSIDE, user, INSIDE, group)
    kernel.drop_capabilities()


def _map_user(inside: int, outside: int, inside_group: int, outside_group: int) -> None:
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{inside} {outside} 1")
    _write("/proc/self/gid_map", f"{inside_group} {outside_group} 1")


def _limit_resources(limits: Mapping[str, Any]) -> None:
    cpu = limits["cpu_seconds"]
    values = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_AS: limits["address_bytes"],
        resource.RLIMIT_FSIZE: limits["disk_bytes"],
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_NOFILE: limits["descriptors"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_SIGPENDING: SIGNALS,
    }
    for which, value in values.items():
        soft, hard = value if isinstance(value, tuple) else (value, value)
        resource.setrlimit(which, (soft, hard))


def _write_files(folder: str, files: Mapping[str, bytes], owner: int | None) -> None:
    for name, content in files.items():
        parts = name.split("/")
        for depth in range(1, len(parts)):
            inner = f"{folder}/{'/'.join(parts[:depth])}"
            if not os.path.isdir(inner):
                os.mkdir(inner)
                mounts.give(inner, owner)
        path = f"{folder}/{name}"
        with open(path, "wb") as file:
            file.write(content)
        mounts.give(path, owner)


def _kill_group(program: int) -> None:
    try:
        os.killpg(program, signal.SIGKILL)
    except ProcessLookupError:
        return


def _report(reply: Mapping[str, Any]) -> None:
    data = marshal.dumps(dict(reply))
    while data:
        data = data[os.write(1, data) :]


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


_TICK_SECONDS = 0.02
"""Interval of memory checks."""
_CHUNK = 65_536


class Output:
    """Output read from one pipe, up to a limit."""

    def __init__(self, descriptor: int, limit: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.data = bytearray()
        self.open = True
        self._limit = limit

    @property
    def too_much(self) -> bool:
        return len(self.data) > self._limit

    @property
    def kept(self) -> bytes:
        return bytes(self.data[: self._limit])

    def read(self) -> bool:
        """Read at most one available chunk. Return whether there was any."""
        try:
            piece = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return False
        self.open = bool(piece)
        self.data += piece[: self._limit + 1 - len(self.data)]
        return bool(piece)


def supervise(program: int, outputs: tuple[Output, Output], limits: Mapping[str, Any], watched: bool) -> dict[str, Any]:
    """Wait for the process `program` to end, or stop waiting at a limit. Return the reply for the host.

    `watched`: this process has its own PID namespace, whose memory it can count.
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
        pass  # drain what the program wrote before it ended
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
    """Reap every child that has ended. Return the wait status of `program` if it is among them."""
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
    if status is None:
        return cut or "killed", None
    code = os.waitstatus_to_exitcode(status)
    if cut is not None:
        return cut, code
    if -code == signal.SIGXCPU:
        return "timed_out", code
    return ("killed" if code < 0 else "finished"), code


def _memory_exceeds(limit: int) -> bool:
    """Return whether all other processes hold more than `limit` bytes. Near the limit shared pages are counted once."""
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
    try:
        with open(f"/proc/{process}/{name}", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""
