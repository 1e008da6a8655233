"""The host side of the sandbox: programs, their isolation and limits, and their results.

    result = Sandbox(SandboxConfig()).run(python_program("print(1 + 1)"))

Runs keep no state. If the machine does not grant the requested isolation, nothing runs and a `RequestError` gives the reason. `isolation`
tests it with a program that tries to escape.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from eval.sandbox.mounts import HOME
from warehouse.errors import RequestError
from warehouse.settings import Section

MIB = 2**20


class SandboxConfig(Section):
    """Isolation and limits of a sandbox, and what it can read of the host."""

    isolation: Literal["namespaces", "none"] = "namespaces"
    """`none` runs programs as the current user, without isolation and without limits on total memory, total file size and number of files:
    for trusted programs.
    """
    wall_seconds: PositiveFloat = 10.0
    cpu_seconds: PositiveInt = 10
    """Processor time per process."""
    memory_mib: PositiveInt = 512
    """Memory of all processes together. Each process may address twice as much; allocation beyond that fails immediately."""
    disk_mib: PositiveInt = 64
    """Total size of all files, which are kept in memory; also the maximum size of one file."""
    max_files: PositiveInt = 4096
    processes: int = Field(default=32, ge=1)
    """Maximum concurrent processes and threads."""
    descriptors: int = Field(default=256, ge=16)
    """Maximum open files per process."""
    output_bytes: PositiveInt = 65_536
    """Maximum size of standard output and of standard error; a program that writes more is ended."""
    libraries: bool = True
    """Make this interpreter's installed packages importable."""
    readable: tuple[str, ...] = ()
    """Additional readable absolute paths of the host, such as /usr/bin for programs other than Python."""
    folders: tuple[str, ...] = ()
    """Additional top-level folders, such as /app: links to folders of the same names in the program's own, which it may create."""


class Ending(StrEnum):
    FINISHED = "finished"
    """By itself, with any status."""
    KILLED = "killed"
    """By a signal not sent by the sandbox: a crash, or its own doing."""
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"


class SandboxFault(Exception):
    """The sandbox itself failed; this says nothing about the program."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to run: `argv`, resolved inside the sandbox, in a folder that contains only `files`."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by relative name; names cannot leave the program's folder."""
    stdin: bytes = b""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the few that every program gets; none of the host's are inherited."""
    channel: int | None = None
    """A host descriptor that becomes the program's descriptor 3, such as one end of a socket pair."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """Output up to the limit, and exit status (negative for a signal; None if cut short)."""

    ending: Ending
    status: int | None
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def succeeded(self) -> bool:
        return self.ending is Ending.FINISHED and self.status == 0

    @property
    def stdout_text(self) -> str:
        return self.stdout.decode(errors="replace")

    @property
    def stderr_text(self) -> str:
        return self.stderr.decode(errors="replace")


INTERPRETER = os.path.realpath(sys.executable)
"""The Python that runs in a sandbox: this one, outside its virtual environment."""
_ROOT = str(Path(__file__).parents[2])
_START = "import sys; sys.path.append(sys.argv[1]); from eval.sandbox.launch import main; main()"
_LAUNCHER = (INTERPRETER, "-I", "-S", "-c", _START, _ROOT)
_GRACE_SECONDS = 10.0
"""Time for the launcher beyond the program's own."""
_SYSTEM_FOLDERS = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache")
_PROBE_PROCESSES = 4
_PROBE = """
import os, socket

def fails(action):
    try:
        action()
    except OSError:
        return True
    return False

def fork_without_end():
    while True:
        if os.fork() == 0:
            os.read(os.pipe()[0], 1)

checks = {
    "host files": fails(lambda: os.listdir("/home")) and fails(lambda: open("/etc/passwd")),
    "writing": fails(lambda: open("/canary", "w")),
    "network": fails(lambda: socket.socket(socket.AF_INET)),
    "namespaces": fails(lambda: os.chroot("/")),
    "processes": fails(fork_without_end),
}
print(",".join(name for name, held in checks.items() if not held))
"""
_ADVICE = (
    "The sandbox needs Linux 5.12 on x86_64 or aarch64 with user namespaces; in a container allow `unshare` and `mount` "
    "(seccomp=unconfined, CAP_SYS_ADMIN)."
)
_PROFILE = "abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile flywheel {python} flags=(unconfined) {{ userns, }}\\n"
_SETTINGS = {
    "kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "Ubuntu restricts user namespaces to programs with an AppArmor profile: create one for this Python, `printf '" + _PROFILE + "' "
        "| sudo tee /etc/apparmor.d/flywheel && sudo apparmor_parser -r /etc/apparmor.d/flywheel`, or allow all programs, "
        "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`.",
    ),
    "kernel/unprivileged_userns_clone": (
        "0",
        "This kernel restricts user namespaces to root: `sudo sysctl -w kernel.unprivileged_userns_clone=1` allows them.",
    ),
    "user/max_user_namespaces": (
        "0",
        "This kernel allows no user namespaces: `sudo sysctl -w user.max_user_namespaces=15000` allows them.",
    ),
}
"""Kernel settings that forbid sandboxes: the forbidding value, and the remedy."""


def python_program(source: str, **fields: Any) -> Program:
    """Create a program from Python source; other fields as in `Program`."""
    return Program((INTERPRETER, "-c", source), **fields)


class RunningProgram:
    """A program in its sandbox. Its reply goes to a file, so that a long reply never blocks on a reader."""

    def __init__(self, launcher: subprocess.Popen[bytes], request: bytes, reply: IO[bytes], patience: float) -> None:
        self._launcher = launcher
        self._reply = reply
        self._patience = patience
        assert launcher.stdin is not None
        with suppress(BrokenPipeError), launcher.stdin as stdin:  # the reply, or its absence, tells why nothing read the request
            stdin.write(request)
        launcher.stdin = None

    def result(self) -> SandboxResult:
        """Wait for the program and return its result. Raises as `Sandbox.run`."""
        try:
            _, err = self._launcher.communicate(timeout=self._patience)
        except subprocess.TimeoutExpired as error:
            raise SandboxFault("the sandbox did not end in time and was killed") from error
        self._reply.seek(0)
        return _read_reply(self._reply.read(), err)


class Sandbox:
    """Runs programs with a configuration's isolation and limits, any number concurrently."""

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()

    def run(self, program: Program) -> SandboxResult:
        """Run a program to its end.

        Raises:
            RequestError: The machine does not grant the isolation, or the program does not exist.
            SandboxFault: The sandbox failed.
        """
        with self.start(program) as running:
            return running.result()

    @contextmanager
    def start(self, program: Program) -> Iterator[RunningProgram]:
        """Start a program in the background. Leaving the context kills it if it still runs."""
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as reply:
            request = self._request(program, folder)
            pipe = subprocess.PIPE
            launcher = subprocess.Popen(_LAUNCHER, stdin=pipe, stdout=reply, stderr=pipe, pass_fds=_passed(program), env={})
            try:
                yield RunningProgram(launcher, request, reply, self._patience)
            finally:
                launcher.kill()
                launcher.communicate()

    async def run_async(self, program: Program) -> SandboxResult:
        """Like `run`, in asyncio; cancellation kills the program."""
        with tempfile.TemporaryDirectory() as folder:
            request = self._request(program, folder)
            pipe, passed = asyncio.subprocess.PIPE, _passed(program)
            launcher = await asyncio.create_subprocess_exec(*_LAUNCHER, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=passed, env={})
            try:
                out, err = await asyncio.wait_for(launcher.communicate(request), self._patience)
            except TimeoutError as error:
                raise SandboxFault("the sandbox did not end in time and was killed") from error
            finally:
                if launcher.returncode is None:
                    launcher.kill()
                    await launcher.wait()
        return _read_reply(out, err)

    @property
    def _patience(self) -> float:
        return self.config.wall_seconds + _GRACE_SECONDS

    def _request(self, program: Program, folder: str) -> bytes:
        for name in program.files:
            _check_name(name)
        request = {
            "argv": list(program.argv),
            "files": dict(program.files),
            "stdin": program.stdin,
            "environment": {**self._environment(folder), **program.environment},
            "channel": program.channel,
            "isolation": self.config.isolation,
            "folder": folder,
            "view": self._view,
            "limits": self._limits,
        }
        return marshal.dumps(request)

    def _environment(self, folder: str) -> dict[str, str]:
        isolated = self.config.isolation != "none"
        return {
            "PATH": f"{Path(INTERPRETER).parent}:/usr/bin:/bin",
            "HOME": HOME if isolated else folder,
            "TMPDIR": "/tmp" if isolated else folder,
            "LANG": "C.UTF-8",
            "PYTHONPATH": ":".join(_library_folders()) if self.config.libraries else "",
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "MALLOC_ARENA_MAX": "2",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    @cached_property
    def _view(self) -> dict[str, Any]:
        """The readable host paths, the hidden folders in them, and the system's symbolic links to recreate."""
        libraries = _library_folders() if self.config.libraries else []
        named = (INTERPRETER, str(Path(sys.base_prefix) / "lib"), *_SYSTEM_FOLDERS, *libraries, *self.config.readable)
        paths = [Path(path) for path in dict.fromkeys(named) if Path(path).exists()]
        links = {str(path): str(path.readlink()) for path in paths if path.is_symlink() and path.parent == Path("/")}
        readable = _outermost([os.path.realpath(path) for path in paths if str(path) not in links])
        own = os.path.realpath(sysconfig.get_path("purelib", vars={"base": sys.base_prefix}))
        shown = Path(own).is_dir() and any(Path(own).is_relative_to(path) for path in readable)
        hidden = [own] if shown and own not in libraries else []
        links |= {folder: f"{HOME}{folder}" for folder in self.config.folders}
        return {"readable": readable, "hidden": hidden, "links": links}

    @cached_property
    def _limits(self) -> dict[str, Any]:
        memory, disk = self.config.memory_mib * MIB, self.config.disk_mib * MIB
        same = self.config.model_dump(include={"wall_seconds", "cpu_seconds", "max_files", "processes", "descriptors", "output_bytes"})
        return {**same, "memory_bytes": memory, "address_bytes": 2 * memory, "disk_bytes": disk}


def _library_folders() -> list[str]:
    return list(dict.fromkeys(os.path.realpath(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")))


def _outermost(paths: list[str]) -> list[str]:
    return sorted({path for path in paths if not any(PurePosixPath(path).is_relative_to(other) for other in paths if other != path)})


def _passed(program: Program) -> tuple[int, ...]:
    return () if program.channel is None else (program.channel,)


def _check_name(name: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\0" in name or str(PurePosixPath(name)) != name:
        raise RequestError(f"the file name {name!r} does not stay within the program's folder: give a plain relative path.")


def _read_reply(out: bytes, err: bytes) -> SandboxResult:
    try:
        reply = marshal.loads(out)
    except (EOFError, ValueError, TypeError) as error:
        lines = err.decode(errors="replace").strip().splitlines()
        raise SandboxFault(f"the sandbox ended without a reply: {lines[-1] if lines else 'it was killed'}") from error
    if "missing" in reply:
        raise RequestError(f"{reply['missing']}.")
    if "refused" in reply:
        raise RequestError(
            f"this machine cannot run the sandbox ({reply['refused']}): allow user namespaces (`flywheel doctor` says how), "
            "or set isolation = none if the code is trusted."
        )
    return SandboxResult(Ending(reply["outcome"]), reply["status"], reply["stdout"], reply["stderr"], reply["seconds"])


@dataclass(frozen=True, slots=True)
class Isolation:
    """Whether this machine can isolate programs, with details, and the remedy if it cannot."""

    granted: bool
    detail: str
    advice: str = ""


def isolation() -> Isolation:
    """Run a program in the sandbox that tries to escape. Takes a fraction of a second."""
    config = SandboxConfig(wall_seconds=60, processes=_PROBE_PROCESSES, libraries=False)
    try:
        result = Sandbox(config).run(python_program(_PROBE))
    except (RequestError, SandboxFault) as error:
        return Isolation(False, str(error), advice())
    not_held = result.stdout_text.strip()
    if not result.succeeded or not_held:
        return Isolation(False, f"checks failed: {not_held or result.stderr_text[-200:]}", advice())
    return Isolation(True, "namespaces, limits and the system call filter work")


def advice(settings: Path = Path("/proc/sys")) -> str:
    """Return the remedy for the kernel setting that forbids sandboxes, or a general one."""
    for name, (value, sentence) in _SETTINGS.items():
        with suppress(OSError):
            if os.geteuid() != 0 and (settings / name).read_text().strip() == value:
                return sentence.format(python=INTERPRETER)
    return _ADVICE


def require_isolation(config: SandboxConfig, what: str) -> None:
    """Raise RequestError unless this machine grants the isolation that `what` needs. Tested once per process."""
    if config.isolation != "none" and not (found := _isolation_once()).granted:
        raise RequestError(f"{what} needs a sandbox, but this machine cannot run one ({found.detail}). {found.advice}")


_isolation_once = cache(isolation)
