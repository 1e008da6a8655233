"""The program's file system: a new root with the interpreter read-only and one writable space.

Part of the launcher, so it avoids pathlib, whose import would take longer than all of this. The root is a tmpfs that ends up read-only. The
writable space is another tmpfs, limited in bytes and files, with the program's folder, /tmp and /dev/shm in it. Nothing else of the host is
visible except what is named as readable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from eval.sandbox import kernel

TYPE_CHECKING = False  # as in launch.py
if TYPE_CHECKING:
    from typing import Any

SPACE = "/space"
HOME = f"{SPACE}/home"
"""The program's folder and working directory."""
_DEVICES = ("null", "zero", "random", "urandom")
_PLACES = {"tmp": "/tmp", "shm": "/dev/shm"}
"""Folders of the space besides the program's own, and where they appear."""
_OLD = "/old"
_HARMLESS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


def change_root(view: Mapping[str, Any], disk_bytes: int, max_files: int, owner: int | None) -> None:
    """Change this process's root, in its own mount namespace, to one that shows the `view` and has a writable space.

    The view names the host's `readable` paths, `hidden` folders within them, and `links` (path to target). The space belongs to the user
    and group `owner`, or to the caller if None.
    """
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m,nr_inodes=4096")
    os.chdir("/tmp")
    os.mkdir("old")
    kernel.pivot_root(".", "old")
    os.chdir("/")
    for path in view["readable"]:
        _bind(path)
        kernel.restrict_mount(path, kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV)
    for path in view["hidden"]:
        kernel.mount("tmpfs", path, "tmpfs", _HARMLESS, "mode=755,size=4k,nr_inodes=1")
        kernel.restrict_mount(path, kernel.MOUNT_ATTR_RDONLY)
    for path, target in view["links"].items():
        os.symlink(target, path)
    for device in _DEVICES:
        _bind(f"/dev/{device}")
        kernel.restrict_mount(f"/dev/{device}", kernel.MOUNT_ATTR_NOSUID)
    _mount_space(disk_bytes, max_files, owner)
    os.makedirs("/proc")
    kernel.mount("proc", "/proc", "proc", _HARMLESS, "subset=pid,hidepid=2")  # hides process 1 and its command line from the program
    kernel.detach(_OLD)
    os.rmdir(_OLD)
    kernel.restrict_mount("/", kernel.MOUNT_ATTR_RDONLY, recursive=False)


def _mount_space(disk_bytes: int, max_files: int, owner: int | None) -> None:
    shown = {place: os.listdir(place) for place in _PLACES.values() if os.path.isdir(place)}
    os.mkdir(SPACE)
    own = 2 + len(_PLACES) + sum(map(len, shown.values()))  # the space, the program's folder, the places, and what is shown in them
    data = f"mode=755,size={disk_bytes},nr_inodes={max_files + own}"
    kernel.mount("tmpfs", SPACE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, data)
    for name in ("home", *_PLACES):
        os.mkdir(f"{SPACE}/{name}", 0o700)
        give(f"{SPACE}/{name}", owner)
    for name, place in _PLACES.items():
        if place in shown:
            _lay_over(f"{SPACE}/{name}", place, shown[place])
        else:
            os.symlink(f"{SPACE}/{name}", place)


def _lay_over(folder: str, place: str, shown: Sequence[str]) -> None:
    """Mount `folder` over a place with host files `shown` below it, such as an interpreter installed in /tmp.

    These files stay there as mounts, which the program can neither write to nor move.
    """
    for name in shown:
        _show(f"{place}/{name}", f"{folder}/{name}")
        kernel.restrict_mount(f"{folder}/{name}", kernel.MOUNT_ATTR_RDONLY, recursive=False)
    kernel.mount(folder, place, None, kernel.MS_BIND | kernel.MS_REC)


def give(path: str, owner: int | None) -> None:
    """Make the user and group `owner`, if given, own `path`."""
    if owner is not None:
        os.chown(path, owner, owner)


def _bind(path: str) -> None:
    _show(_OLD + path, path)


def _show(source: str, path: str) -> None:
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o444))
    kernel.mount(source, path, None, kernel.MS_BIND | kernel.MS_REC)
