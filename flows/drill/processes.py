"""The processes of one run on this machine, and which of them a fault may strike.

A process belongs to a run if the run's driver started it, directly or through others, or if it bears the run's token. Titles only tell
apart what belongs; nothing is found by its name.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from flows.drill.faults import FaultKind
from flows.guardian import carriers

TITLES = {
    FaultKind.WORKER: ("ray::EnvironmentWorker",),
    FaultKind.ENGINE: ("ray::VllmEngine", "VLLM::"),
    FaultKind.LEARNER: ("ray::RayTrainWorker", "ray::_RayTrainWorker"),
}
"""How the titles of processes begin that a kind of fault strikes."""
SERVER = "prefect.server.api.server:create_app"
TRAINING = ("cpt", "sft", "rl")


@dataclass(frozen=True, slots=True)
class Process:
    """A process: its id, its parent's, when it began (seconds since 1970), its title.

    An id is given again once its process has ended; id and `began` together are not.
    """

    id: int
    parent: int
    began: float
    title: str

    @property
    def is_there(self) -> bool:
        """Whether it has not ended."""
        now = read_process(self.id)
        return now is not None and now.began == self.began


def read_process(process: int) -> Process | None:
    """The process of that id; None where there is none, or one that has ended and was not collected by its parent."""
    with suppress(psutil.Error):  # it ended meanwhile, or is not ours to look at
        found = psutil.Process(process)
        with found.oneshot():
            if found.status() != psutil.STATUS_ZOMBIE:
                return Process(found.pid, found.ppid(), found.create_time(), " ".join(found.cmdline()).strip())
    return None


def processes_of(driver: int, token: str | None) -> list[Process]:
    """The driver of a run and all that came of it."""
    everyone = _everyone()
    bearing = [] if token is None else [everyone[each] for each in carriers(token) if each in everyone]
    return list({each.id: each for each in (*family(driver, everyone), *bearing)}.values())


def family(root: int, everyone: Mapping[int, Process]) -> list[Process]:
    """`root` and its children, their children, and so on, as far as they are in `everyone`."""
    children: dict[int, list[Process]] = {}
    for process in everyone.values():
        children.setdefault(process.parent, []).append(process)
    found = [everyone[root]] if root in everyone else []
    for process in found:  # grows while it is gone through
        found += children.get(process.id, ())
    return found


def targets(kind: FaultKind, driver: int, run: Iterable[Process], stage: str | None) -> list[Process]:
    """The processes of a run, any of which a fault of that kind may strike while `stage` is at work."""
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
    """SIGKILL for exactly this process; whether it was still there. An id that somebody else has meanwhile is left alone."""
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
    """Those that have not ended."""
    return [process for process in processes if process.is_there]


def _everyone() -> dict[int, Process]:
    """Every process on this machine, by id."""
    return {number: found for number in psutil.pids() if (found := read_process(number)) is not None}
