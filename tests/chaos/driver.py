"""One process of `flywheel run`, watched from outside: what belongs to it, what is at work in it, and how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from flows.home import Home
from flows.operations.control import read_progress
from flows.runtime import TOKEN, carriers
from tests.chaos.processes import Process, entries, held_by, processes_of, read_process, still_there
from tests.killing import token_of

GONE_SECONDS = 240.0
"""How long what a driver started may outlive it; its reaper needs about four seconds of a machine that is not busy."""
LOOK_SECONDS = 2.0
"""Pause between two looks at what the run's processes hold open."""
NOT_PASSED_ON = (TOKEN, "PREFECT_API_URL")
"""A driver has a reaper of its own, and starts its own server: no other is killed."""


class Driver:
    """`flywheel run` in a process of its own; leaving the block kills it and waits for what it started."""

    def __init__(self, home: Path, arguments: Sequence[str], log: Path) -> None:
        self.home = home
        self.began = time.monotonic()
        self.faults = 0
        self.held: set[Path] = set()
        self.known: dict[tuple[int, float], Process] = {}
        self.left: list[Process] = []
        self._before = entries()
        self._looked = 0.0
        self._token: str | None = None
        self._log = log.open("a")
        command = [sys.executable, "-m", "flows.cli", "run", "--home", str(home), *arguments]
        environment = {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._log, env=environment)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._log.close()
        deadline = time.monotonic() + GONE_SECONDS
        while (left := self._still_there()) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.left = left

    @property
    def id(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Negative where a signal ended it; None while it runs."""
        return self._process.poll()

    def at_work(self) -> tuple[str, str] | None:
        """The run and the stage, by the record of its progress."""
        progress = read_progress(Home(self.home).progress)
        if progress is None or progress.process != self.id or progress.stage is None or progress.is_stale(time.time()):
            return None
        return progress.stage.run, progress.stage.stage

    def processes(self) -> list[Process]:
        """Those of the run now; they are remembered."""
        self._token = self._token or token_of(self.id)
        found = processes_of(self.id, self._token)
        self.known |= {(each.id, each.began): each for each in found}
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self.held |= held_by(found, self.home) - self._before
            self._looked = time.monotonic()
        return found

    def _still_there(self) -> list[Process]:
        """Whom we saw, and whom we did not see but who bears its token."""
        late = [] if self._token is None else [found for each in carriers(self._token) if (found := read_process(each))]
        return list({each.id: each for each in (*still_there(list(self.known.values())), *late)}.values())
