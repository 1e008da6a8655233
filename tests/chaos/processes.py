"""The processes of one run on this machine, which of them a fault may strike, and what they could leave behind outside the home.

A process belongs to a run if the run's driver started it, directly or through others, or if it bears the run's token. Titles only tell
apart what belongs; files are those that the run's processes hold open or mapped, and that were not there before.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.runtime import carriers
from tests.chaos.faults import FaultKind

TITLES = {
    FaultKind.WORKER: ("ray::EnvironmentWorker",),
    FaultKind.ENGINE: ("ray::VllmEngine", "VLLM::"),
    FaultKind.LEARNER: ("ray::_LearnerWorker", "ray::_Runner"),
}
"""How the titles of processes begin that a kind of fault strikes."""
SERVER = "prefect.server.api.server:create_app"
TRAINING = ("cpt", "sft", "rl")
PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
CACHES = ("torchinductor_",)
"""Compiled code that PyTorch keeps for every process of this user."""


@dataclass(frozen=True, slots=True)
class Process:
    """An id is given again once its process has ended; id and `began` together are not."""

    id: int
    parent: int
    began: float
    title: str

    @property
    def is_there(self) -> bool:
        now = read_process(self.id)
        return now is not None and now.began == self.began


def read_process(process: int) -> Process | None:
    """None where there is none, or one that has ended and was not collected by its parent."""
    with suppress(psutil.Error):  # it ended meanwhile, or is not ours to look at
        found = psutil.Process(process)
        with found.oneshot():
            if found.status() != psutil.STATUS_ZOMBIE:
                return Process(found.pid, found.ppid(), found.create_time(), " ".join(found.cmdline()).strip())
    return None


def processes_of(driver: int, token: str | None) -> list[Process]:
    everyone = _everyone()
    bearing = [] if token is None else [everyone[each] for each in carriers(token) if each in everyone]
    return list({each.id: each for each in (*family(driver, everyone), *bearing)}.values())


def family(root: int, everyone: Mapping[int, Process]) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for process in everyone.values():
        children.setdefault(process.parent, []).append(process)
    found = [everyone[root]] if root in everyone else []
    for process in found:  # grows while it is gone through
        found += children.get(process.id, ())
    return found


def targets(kind: FaultKind, driver: int, run: Iterable[Process], stage: str | None) -> list[Process]:
    """The processes of which a fault of that kind may strike any while `stage` is at work."""
    run = list(run)
    itself = [process for process in run if process.id == driver]
    if kind is FaultKind.DRIVER:
        return itself
    if kind is FaultKind.SERVER:
        # For one that dies before it ever answered, Prefect waits two minutes: nothing to learn from, and much to wait for.
        return [process for process in run if stage and process.parent == driver and SERVER in process.title]
    struck = [process for process in run if process.title.startswith(TITLES.get(kind, ()))]
    return itself if kind is FaultKind.LEARNER and not struck and stage in TRAINING else struck


def kill(process: Process) -> bool:
    """Whether it was still there; an id that another process has meanwhile is left alone."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.id)
        try:
            if process.is_there:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def still_there(processes: Sequence[Process]) -> list[Process]:
    return [process for process in processes if process.is_there]


def _everyone() -> dict[int, Process]:
    return {number: found for number in psutil.pids() if (found := read_process(number)) is not None}


def places() -> tuple[Path, ...]:
    """Where processes put what they need for a while, outside of the home."""
    return SHARED_MEMORY, Path(tempfile.gettempdir()).resolve()


def entries() -> set[Path]:
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
    """Files open or mapped, and Unix sockets."""
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
    """By the name under which `/proc/PID/fd` refers to them."""
    rows = (line.split() for line in (PROC / "net" / "unix").read_text(errors="replace").splitlines()[1:])
    return {f"socket:[{row[6]}]": Path(row[7]) for row in rows if len(row) > 7 and row[7].startswith("/")}
