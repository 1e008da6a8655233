"""Kernel calls missing from Python 3.11, by ctypes, and the seccomp filter of system calls.

Each call raises OSError with its name. Part of the launcher, which starts once per program, so it imports only the standard library.

The filter is a BPF program. It rejects calls that computation does not need and that kernel exploits use. Namespaces and limits already
make most of them ineffective. Instructions: (code, jump if true, jump if false, operand).
"""

from __future__ import annotations

import ctypes
import errno
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
"""The sandbox's own namespaces, except the user namespace."""

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
    _check(_LIBC.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode())
    _check(_LIBC.mount(*arguments), f"mount {kind or 'bind'} at {target}")


def restrict_mount(path: str, attributes: int, recursive: bool = True) -> None:
    """Add attributes to the mount at `path` and, if `recursive`, those below it (mount_setattr, Linux 5.12)."""
    settings = ctypes.create_string_buffer(struct.pack("QQQQ", attributes, 0, 0, 0), 32)
    flags = _AT_RECURSIVE if recursive else 0
    result = _LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, settings, ctypes.c_size_t(32))
    _check(result, f"mount_setattr {path}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root of the mount namespace and move the former root to `old`, a folder in it."""
    _check(_LIBC.syscall(_PIVOT_ROOT[os.uname().machine], new.encode(), old.encode()), "pivot_root")


def detach(path: str) -> None:
    """Detach the mount at `path` and all below it."""
    _check(_LIBC.umount2(path.encode(), _MNT_DETACH), f"umount {path}")


def name_machine(name: str) -> None:
    """Set this UTS namespace's host name and clear its domain, since a new namespace inherits the host's."""
    _check(_LIBC.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")
    _check(_LIBC.setdomainname(b"", ctypes.c_size_t(0)), "setdomainname")


def die_with_parent(signal: int) -> None:
    """Make the kernel send `signal` to this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def set_dumpable(dumpable: bool) -> None:
    """Set whether processes of the same user may inspect this one, and whether it may write its own user maps."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def drop_capabilities() -> None:
    """Drop every capability, and the ability to gain any by running a file."""
    for capability in range(_HIGHEST_CAPABILITY + 1):
        if _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the kernel has no capability with this number
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION_3, 0), 8)
    _check(_LIBC.capset(header, ctypes.create_string_buffer(24)), "capset")


def gain_no_privileges() -> None:
    """Disable set-user-id bits and file capabilities for this process and its descendants."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def filter_calls(instructions: bytes) -> None:
    """Install a seccomp filter, a BPF program of 8-byte instructions."""
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


Instruction = tuple[int, int, int, int]

_LOAD, _EQUALS, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_OFFSET, _MACHINE_OFFSET, _FIRST_ARGUMENT_OFFSET, _SECOND_ARGUMENT_OFFSET = 0, 4, 16, 24
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32_CALLS = 0x40000000
_AF_UNIX = 1

_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine → its AUDIT_ARCH_* number, and its column in the tables of calls."""

_CLONE, _CLONE3, _SOCKET, _FCNTL = (56, 220), (435, 435), (41, 198), (72, 25)

_F_SETLEASE, _F_NOTIFY = 1024, 1026
"""Commands of `fcntl` that, like inotify, observe or delay what others do with a file or folder."""

REFUSED: dict[str, tuple[int | None, int | None]] = {
    # inspection of other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # mounts, roots and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "unshare": (272, 97),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "mknod": (133, None),
    "mknodat": (259, 33),
    # host files: watching access by others, locking them, stalling the disk
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "flock": (73, 32),
    "sync": (162, 81),
    "syncfs": (306, 267),
    # keys, and interpreters and queues within the kernel
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # memory that no limit on processes or files counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # the machine itself
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
}
"""Calls that fail with EPERM, with their numbers on x86_64 and aarch64."""


def call_filter(machine: str) -> bytes:
    """Build the filter for `machine`, named as by the kernel. Raises KeyError for an unknown machine."""
    audit, column = _MACHINES[machine]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _MACHINE_OFFSET),
        (_EQUALS, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        (_AT_LEAST, 0, 1, _X32_CALLS),
        (_RETURN, 0, 0, _KILL),
    ]
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            program += _fail(number, errno.EPERM)
    # A filter cannot read clone3's flags, which are in memory; the C library then falls back to clone.
    program += _fail(_CLONE3[column], errno.ENOSYS)
    program += _only_without(_CLONE[column], CLONE_NEWUSER | NAMESPACES)
    program += _only_with(_SOCKET[column], _AF_UNIX)
    program += _without_either(_FCNTL[column], _F_SETLEASE, _F_NOTIFY)
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _fail(number: int, error: int) -> list[Instruction]:
    return [(_EQUALS, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]


def _only_without(number: int, bits: int) -> list[Instruction]:
    """Reject the call `number` if its first argument has any of `bits`, otherwise allow it."""
    return [
        (_EQUALS, 0, 4, number),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_OFFSET),
        (_HAS_BITS, 0, 1, bits),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _without_either(number: int, one: int, other: int) -> list[Instruction]:
    """Reject the call `number` if its second argument is one of two values, otherwise allow it."""
    return [
        (_EQUALS, 0, 5, number),
        (_LOAD, 0, 0, _SECOND_ARGUMENT_OFFSET),
        (_EQUALS, 1, 0, one),
        (_EQUALS, 0, 1, other),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _only_with(number: int, value: int) -> list[Instruction]:
    """Reject the call `number` unless its first argument is `value`, otherwise allow it."""
    return [
        (_EQUALS, 0, 4, number),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_OFFSET),
        (_EQUALS, 1, 0, value),
        (_RETURN, 0, 0, _ERRNO | errno.EACCES),
        (_RETURN, 0, 0, _ALLOW),
    ]
