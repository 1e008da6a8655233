"""A chaos test: the wheel undisturbed, the wheel under faults until all of them were made, the comparison."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.comparison import Check, Standard, committed_at, compare, finished, nothing_left
from tests.chaos.driver import Driver
from tests.chaos.faults import FaultKind, Order, choose, full_disk, order_faults, why_not_filled
from tests.chaos.journal import DriverEnd, InjectedFault, Journal
from tests.chaos.processes import Process, kill, targets
from warehouse.digests import seed_from
from warehouse.errors import WorkFailed

log = logging.getLogger("flywheel")

LOOK_SECONDS = 0.5
FULL_SECONDS = (2.0, 8.0)
"""How long a disk stays full: drawn between these."""
HOMES_WITHOUT = 3
"""Homes in which no fault found its moment, after which none ever will."""


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """`seconds` is the mean pause before a fault."""

    profile: str
    settings: tuple[str, ...]
    turns: int
    faults: int
    kinds: tuple[FaultKind, ...]
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class HomeResult:
    home: str
    faults: int
    drivers: int
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class ChaosResult:
    homes: tuple[HomeResult, ...]
    faults: tuple[InjectedFault, ...]
    left_out: str | None = None

    @property
    def held(self) -> bool:
        return all(check.held for home in self.homes for check in home.checks)


class FaultInjector:
    """Makes the faults of an order that are not made yet: at a drawn moment, the first kind that is possible then."""

    def __init__(self, journal: Journal, order: Order, seed: int) -> None:
        self._journal = journal
        self._order = order
        self._seed = seed
        self._moment = 0.0

    @property
    def remaining(self) -> list[FaultKind]:
        return self._order.remaining(self._journal.made())

    def wait(self) -> None:
        done = len(self._journal.faults())
        self._moment = time.monotonic() + (self._order.pauses[done] if done < len(self._order.pauses) else 0.0)

    def inject(self, driver: Driver) -> None:
        """Make the next fault if its moment has come and one is possible; where none is, a later look may find one."""
        run = driver.processes()
        if time.monotonic() < self._moment or not (remaining := self.remaining):
            return
        at_work = driver.at_work()
        stage = at_work[1] if at_work else None
        found = {kind: targets(kind, driver.id, run, stage) for kind in set(remaining)}
        kind = choose(remaining, {kind for kind in found if found[kind] or (kind is FaultKind.DISK and at_work)})
        if kind is None:
            return
        committed = committed_at(driver.home)
        self._journal.note_committed(driver.home, committed)
        moment, at_work_run = datetime.now(UTC).isoformat(), at_work[0] if at_work else None
        chance = random.Random(seed_from(self._seed, len(self._journal.faults())))
        process = None if kind is FaultKind.DISK else chance.choice(sorted(found[kind], key=lambda each: each.id))
        if self._make(process, chance):
            fault = InjectedFault(driver.home.name, moment, kind, process.id if process else None, at_work_run, len(committed))
            self._journal.note(fault)
            driver.faults += 1
            log.info("%s: %s while %s, %d faults to go", fault.home, kind, fault.at_work or "nothing was at work", len(remaining) - 1)
            self.wait()

    def _make(self, process: Process | None, chance: random.Random) -> bool:
        """Kill the process, or fill the disk for a while where there is none to kill."""
        if process is not None:
            return kill(process)
        with full_disk(self._journal.root):
            time.sleep(chance.uniform(*FULL_SECONDS))
        return True


class ChaosTest:
    """`run` begins it, or goes on with it."""

    def __init__(self, journal: Journal, settings: ChaosSettings) -> None:
        journal.claim(asdict(settings))
        self._journal = journal
        self._settings = settings
        self._no_disk = why_not_filled(journal.root) if FaultKind.DISK in settings.kinds else None
        kinds = tuple(kind for kind in settings.kinds if kind is not FaultKind.DISK or self._no_disk is None)
        self._injector = FaultInjector(journal, order_faults(settings.faults, kinds, settings.seconds, settings.seed), settings.seed)

    def run(self) -> ChaosResult:
        if not self._injector.remaining and not self._unfinished():
            log.info("nothing to do: the chaos test in %s is done", self._journal.root)
        self._turn(self._journal.undisturbed, disturbed=False)
        without = 0
        while (remaining := self._injector.remaining) or self._unfinished():
            home = next(iter(self._unfinished()), self._journal.disturbed(len(self._journal.disturbed_homes()) + 1))
            self._turn(home, disturbed=True)
            without = without + 1 if remaining == self._injector.remaining else 0
            if remaining and without == HOMES_WITHOUT:
                raise WorkFailed(f"no moment came for {remaining[0]} in {without} wheels; ask for a smaller --every, or for other --kinds.")
        homes = tuple(map(self._look_at, self._journal.disturbed_homes()))
        return ChaosResult(homes, tuple(self._journal.faults()), self._no_disk)

    def _unfinished(self) -> list[Path]:
        return [home for home in self._journal.disturbed_homes() if not finished(home, self._settings.turns)]

    def _turn(self, home: Path, disturbed: bool) -> None:
        while not finished(home, self._settings.turns):
            with Driver(home, self._arguments(), self._journal.log(home)) as driver:
                self._injector.wait()
                while driver.status is None:
                    time.sleep(LOOK_SECONDS)
                    if disturbed:
                        self._injector.inject(driver)
            self._end(driver)

    def _end(self, driver: Driver) -> None:
        status, home, log_file = driver.status, driver.home, self._journal.log(driver.home)
        assert status is not None, "it was waited for"
        seconds = round(time.monotonic() - driver.began, 1)
        left = tuple(f"{each.id} {each.title[:80]}" for each in driver.left)
        self._journal.note(DriverEnd(home.name, driver.id, seconds, status, driver.faults, left, tuple(sorted(map(str, driver.held)))))
        log.info("%s: driver %d ended with status %d after %.0f s and %d faults", home.name, driver.id, status, seconds, driver.faults)
        if status and not driver.faults:
            raise WorkFailed(f"the wheel in {home} cannot go on, see {log_file}: {_last_words(log_file)}")

    def _arguments(self) -> list[str]:
        settings = [part for setting in self._settings.settings for part in ("--set", setting)]
        return ["--profile", self._settings.profile, "--turns", str(self._settings.turns), *settings]

    def _look_at(self, home: Path) -> HomeResult:
        drivers = [driver for driver in self._journal.drivers() if driver.home == home.name]
        faults = Counter(fault.home for fault in self._journal.faults())[home.name]
        processes = [left for driver in drivers for left in driver.left]
        files = sorted({Path(name) for driver in drivers for name in driver.held if Path(name).exists()})
        checks = compare(home, Standard.of(self._journal.undisturbed), self._journal.committed(home))
        return HomeResult(home.name, faults, len(drivers), (*checks, nothing_left(processes, files)))


def _last_words(log_file: Path) -> str:
    lines = log_file.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("flywheel: ") if lines else "its log is empty"
