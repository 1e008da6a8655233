"""The launcher: a process that isolates the program, starts it and reports how it ended.

It reads one request from its standard input and writes one reply to its standard output, both in Python's `marshal` form (host and
launcher are the same interpreter and trust each other). It runs under `python -I -S` and imports little, for its start is paid for
by every program.

    launcher --fork--> process 1 of the new namespaces --fork--> the program
                       mounts, output, limits                  no privileges, rlimits, seccomp, exec

The program leaves the user namespace of process 1 for one of its own: it has no capability there, its processes are counted
apart, and process 1 is out of its reach. Where the host's user is root, the program is `nobody` first.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import resource
import select
import signal
import sys
from collections.abc import Mapping

from eval.sandbox import kernel, mounts
from eval.sandbox.seccomp import call_filter
from eval.sandbox.supervision import Output, supervise

TYPE_CHECKING = False  # that of typing, whose import would cost a fifth of the launcher's start
if TYPE_CHECKING:
    from typing import Any, NoReturn

NOBODY = 65_534
"""The user that a program is on the host where the host's user is root."""
INSIDE = 1000
"""Its user and group as itself sees them."""
CHANNEL = 3
"""The descriptor at which the program finds its channel, where the request has one."""
HOST = "sandbox"
"""The name of the machine as the program sees it."""
SIGNALS = 256
"""Queued signals and timers of all its processes: a timer is memory of the kernel that nothing else counts."""
_ALL_USERS = ["0", "0", "4294967295"]
_HIGH = 64
"""Descriptors from here up are the launcher's own and close when the program is executed."""
_MISSING, _REFUSED = "missing", "refused"


def main() -> None:
    """Serve the request on the standard input."""
    request = marshal.loads(sys.stdin.buffer.read())
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # a handler of Python's would open process 1 to signals from within, and be inherited
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
    """Enter new namespaces. Returns the host user that programs run as, None where that is the current one.

    Raises:
        OSError: where the kernel does not grant them.
        KeyError: where the filter of calls is not known for this machine.
    """
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
    if select.select([alive], [], [], 0)[0]:  # the launcher had ended before that
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
    """Write the files, start the program and supervise it. Returns the reply for the host."""
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
        failure = file.read()  # ends when the program is executed, for its end of the pipe is closed then
    if failure:
        return marshal.loads(failure)
    limit = request["limits"]["output_bytes"]
    reply = supervise(program, (Output(out, limit), Output(err, limit)), request["limits"], isolated)
    if not isolated:
        _kill_group(program)
    return reply


def _exec_program(request: Mapping[str, Any], folder: str, owner: int | None, ends: tuple[int, int, int]) -> NoReturn:
    """Replace this process by the program; a failure is written to the last of `ends`."""
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
    except BaseException as error:  # whatever it is, this process must not go on as a copy of the launcher
        os.write(trouble, marshal.dumps({_REFUSED: f"{type(error).__name__}: {error}"}))
    finally:
        os._exit(1)


def _arrange_descriptors(request: Mapping[str, Any], ends: tuple[int, int, int]) -> int:
    """Give the program its standard streams and channel and no other descriptor. Returns the descriptor for failures."""
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
    """A descriptor above the standard ones from which `data` can be read."""
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
    kernel.set_dumpable(True)  # else its map of users belongs to root and cannot be written
    kernel.unshare(kernel.CLONE_NEWUSER)
    _map_user(INSIDE, user, INSIDE, group)
    kernel.drop_capabilities()


def _map_user(inside: int, outside: int, inside_group: int, outside_group: int) -> None:
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{inside} {outside} 1")
    _write("/proc/self/gid_map", f"{inside_group} {outside_group} 1")


def _limit_resources(limits: Mapping[str, Any]) -> None:
    """Set the limits of each process, soft and hard alike so that none can be raised again."""
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
    """Write `files` by their names within `folder`; the host has checked that the names stay there."""
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
    """Kill the program's process group, which is all that can be found without a namespace."""
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
