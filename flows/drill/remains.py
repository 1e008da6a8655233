"""What a run could leave behind outside its home: processes, shared memory, sockets and temporary files.

Files are not found by their names either: noted is what the run's processes hold open, or mapped, while they live. What of it
existed before is not the run's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from flows.drill.processes import Process

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
CACHES = ("torchinductor_",)
"""Compiled code that PyTorch keeps for every process of this user."""


def places() -> tuple[Path, ...]:
    """The folders outside the home in which processes put what they need for a while."""
    return SHARED_MEMORY, Path(tempfile.gettempdir()).resolve()


def entries() -> set[Path]:
    """What lies in these folders now."""
    return {entry for place in places() if place.is_dir() for entry in place.iterdir()}


def held_by(processes: Iterable[Process], except_for: Path) -> set[Path]:
    """The entries of these folders in which the processes hold something; the one that `except_for` lies in is left out."""
    sockets = _socket_paths()
    found = set()
    for process in processes:
        for path in _paths(process.id, sockets):
            for place in places():
                if path.is_relative_to(place) and path != place:
                    found.add(place / path.relative_to(place).parts[0])
    return {entry for entry in found if not except_for.is_relative_to(entry) and not entry.name.startswith(CACHES)}


def _paths(process: int, sockets: dict[str, Path]) -> Iterator[Path]:
    """The files that a process has open or mapped, and the Unix sockets that it is bound to."""
    folder = PROC / str(process)
    with suppress(OSError):  # it ended
        for handle in (folder / "fd").iterdir():
            with suppress(OSError):
                target = handle.readlink()
                path = sockets.get(str(target), target)
                if path.is_absolute():
                    yield path
    with suppress(OSError):
        for line in (folder / "maps").read_text(errors="replace").splitlines():
            start = line.find("/")
            if start >= 0:
                yield Path(line[start:])


def _socket_paths() -> dict[str, Path]:
    """The Unix sockets that have a path, under the name by which `/proc/PID/fd` refers to them."""
    rows = (line.split() for line in (PROC / "net" / "unix").read_text(errors="replace").splitlines()[1:])
    return {f"socket:[{row[6]}]": Path(row[7]) for row in rows if len(row) > 7 and row[7].startswith("/")}
