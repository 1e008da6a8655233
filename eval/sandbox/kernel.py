"""Calls to the kernel that Python 3.11 has no function for, by ctypes; each raises OSError with the call's name.

Part of the launcher: imports the standard library alone, for a launcher starts for every program that runs.
"""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
NAMESPACES = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
"""What a sandbox has of its own, beside its users."""

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x40000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4
_MNT_DETACH = 0x2
_AT_RECURSIVE = 0x8000
_AT_FDCWD = -100

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_HIGHEST_CAPABILITY = 63

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442

_LIBC = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` name for new ones."""
    _check(_LIBC.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount `source` at `target`."""
    arguments = (source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode())
    _check(_LIBC.mount(*arguments), f"mount {kind or 'bind'} at {target}")


def restrict_mount(path: str, attributes: int, recursive: bool = True) -> None:
    """Add attributes to the mount at `path` and to those below it (mount_setattr, Linux 5.12)."""
    settings = ctypes.create_string_buffer(struct.pack("QQQQ", attributes, 0, 0, 0), 32)
    flags = _AT_RECURSIVE if recursive else 0
    result = _LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, settings, ctypes.c_size_t(32))
    _check(result, f"mount_setattr {path}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root of the mount namespace and put the former root at `old`, a folder in it."""
    _check(_LIBC.syscall(_PIVOT_ROOT[os.uname().machine], new.encode(), old.encode()), "pivot_root")


def detach(path: str) -> None:
    """Take the mount at `path` and all below it out of sight."""
    _check(_LIBC.umount2(path.encode(), _MNT_DETACH), f"umount {path}")


def name_machine(name: str) -> None:
    """Give this UTS namespace a name of its own, and no domain: a new one begins with the host's."""
    _check(_LIBC.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")
    _check(_LIBC.setdomainname(b"", ctypes.c_size_t(0)), "setdomainname")


def die_with_parent(signal: int) -> None:
    """Have the kernel send `signal` to this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def set_dumpable(dumpable: bool) -> None:
    """Say whether processes of the same user may look into this one, and whether it may write its own maps of users."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def drop_capabilities() -> None:
    """Give up every capability, and the right to gain any by running a file."""
    for capability in range(_HIGHEST_CAPABILITY + 1):
        if _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the kernel has no capability of so high a number
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION_3, 0), 8)
    _check(_LIBC.capset(header, ctypes.create_string_buffer(24)), "capset")


def gain_no_privileges() -> None:
    """Make set-user-id bits and file capabilities without effect for this process and all that come from it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def filter_calls(instructions: bytes) -> None:
    """Put a seccomp filter, a program of BPF instructions of 8 bytes each, before every call from now on."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(instructions) // 8, ctypes.addressof(code)), 16)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))


def _prctl(option: int, value: int, pointer: int = 0) -> None:
    arguments = (ctypes.c_ulong(value), ctypes.c_ulong(pointer), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _check(_LIBC.prctl(option, *arguments), f"prctl {option}")


def _check(result: int, call: str) -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
