"""Whether this machine grants the isolation of the sandbox: tried, not guessed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from eval.sandbox.config import SandboxConfig
from eval.sandbox.sandbox import Sandbox, python_program
from eval.sandbox.values import SandboxFault
from warehouse.errors import RequestError

_PROCESSES = 4
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


@dataclass(frozen=True, slots=True)
class Isolation:
    """Whether programs can be isolated here, how it was found out, and what to do where they cannot."""

    granted: bool
    detail: str
    advice: str = ""


def isolation() -> Isolation:
    """Run a program in the sandbox that tries to get out of it; takes a fraction of a second."""
    config = SandboxConfig(wall_seconds=5, processes=_PROCESSES, libraries=False)
    try:
        result = Sandbox(config).run(python_program(_PROBE))
    except (RequestError, SandboxFault) as error:
        return Isolation(False, str(error), _ADVICE)
    open_walls = result.stdout_text.strip()
    if not result.succeeded or open_walls:
        return Isolation(False, f"not held: {open_walls or result.stderr_text[-200:]}", _ADVICE)
    return Isolation(True, "namespaces, limits and a filter of calls hold")


def require_isolation(config: SandboxConfig, what: str) -> None:
    """See that this machine grants the isolation that `config` asks for, tried once in a process.

    Raises:
        RequestError: where it does not; `what` names who needs it.
    """
    if config.isolation != "none" and not _tried().granted:
        raise RequestError(f"{what} needs a sandbox, and this machine grants none ({_tried().detail}). {_ADVICE}")


@cache
def _tried() -> Isolation:
    return isolation()


_ADVICE = (
    "The sandbox needs Linux 5.12 on x86_64 or aarch64 with user namespaces: set the sysctl user.max_user_namespaces above 0 and "
    "kernel.apparmor_restrict_unprivileged_userns to 0; in a container allow `unshare` and `mount` (seccomp=unconfined, CAP_SYS_ADMIN)."
)
