"""A drill: the wheel undisturbed, the wheel under faults until all of them were made, the comparison."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.drill.comparing import Check, Standard, compare, nothing_left
from flows.drill.disk import why_not_filled
from flows.drill.driving import Driver
from flows.drill.faults import FaultKind, order_faults
from flows.drill.lakes import finished
from flows.drill.ledger import DriverEnd, Ledger, Made
from flows.drill.striking import Striker
from warehouse.errors import WorkFailed

log = logging.getLogger("flywheel")

LOOK_SECONDS = 0.5
"""Pause between two looks at a driver."""
HOMES_WITHOUT = 3
"""Homes in which no fault found its moment, after which none ever will."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a drill is asked for; `seconds` is the mean pause before a fault."""

    profile: str
    settings: tuple[str, ...]
    turns: int
    faults: int
    kinds: tuple[FaultKind, ...]
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class HomeResult:
    """One disturbed home: what it went through and what was found in it."""

    home: str
    faults: int
    drivers: int
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class DrillResult:
    """All of a drill; `faults` by kind and the stage that was at work."""

    homes: tuple[HomeResult, ...]
    faults: tuple[Made, ...]
    left_out: str | None = None
    """Why no disk was filled, where none was."""

    @property
    def held(self) -> bool:
        """Whether everything held in every home."""
        return all(check.held for home in self.homes for check in home.checks)


class Drill:
    """A drill in its folder; `run` begins it, or goes on with it.

    Raises:
        RequestError: the folder is another drill's.
    """

    def __init__(self, ledger: Ledger, asked: Asked) -> None:
        ledger.claim(asdict(asked))
        self._ledger = ledger
        self._asked = asked
        self._no_disk = why_not_filled(ledger.root) if FaultKind.DISK in asked.kinds else None
        kinds = tuple(kind for kind in asked.kinds if kind is not FaultKind.DISK or self._no_disk is None)
        self._striker = Striker(ledger, order_faults(asked.faults, kinds, asked.seconds, asked.seed), asked.seed)

    def run(self) -> DrillResult:
        """Run what is left to run, and compare.

        Raises:
            WorkFailed: a wheel cannot go on, though nothing was done to its last driver; or a fault finds no moment.
        """
        if not self._striker.remaining and not self._unfinished():
            log.info("nothing to do: the drill in %s is done", self._ledger.root)
        self._turn(self._ledger.undisturbed, disturbed=False)
        without = 0
        while (remaining := self._striker.remaining) or self._unfinished():
            home = next(iter(self._unfinished()), self._ledger.disturbed(len(self._ledger.disturbed_homes()) + 1))
            self._turn(home, disturbed=True)
            without = without + 1 if remaining == self._striker.remaining else 0
            if remaining and without == HOMES_WITHOUT:
                raise WorkFailed(f"no moment came for {remaining[0]} in {without} wheels; ask for a smaller --every, or for other --kinds.")
        homes = tuple(map(self._look_at, self._ledger.disturbed_homes()))
        return DrillResult(homes, tuple(self._ledger.faults()), self._no_disk)

    def _unfinished(self) -> list[Path]:
        return [home for home in self._ledger.disturbed_homes() if not finished(home, self._asked.turns)]

    def _turn(self, home: Path, disturbed: bool) -> None:
        """Start the wheel in `home` again and again until it is finished."""
        while not finished(home, self._asked.turns):
            with Driver(home, self._arguments(), self._ledger.log(home)) as driver:
                self._striker.wait()
                while driver.status is None:
                    time.sleep(LOOK_SECONDS)
                    if disturbed:
                        self._striker.look(driver)
            self._end(driver)

    def _end(self, driver: Driver) -> None:
        """Write down how a driver ended. Raises WorkFailed where it did not end well and nothing had been done to it."""
        status, home, log_file = driver.status, driver.home, self._ledger.log(driver.home)
        assert status is not None, "it was waited for"
        seconds = round(time.monotonic() - driver.began, 1)
        left = tuple(f"{each.id} {each.title[:80]}" for each in driver.left)
        self._ledger.note(DriverEnd(home.name, driver.id, seconds, status, driver.faults, left, tuple(sorted(map(str, driver.held)))))
        log.info("%s: driver %d ended with status %d after %.0f s and %d faults", home.name, driver.id, status, seconds, driver.faults)
        if status and not driver.faults:
            raise WorkFailed(f"the wheel in {home} cannot go on, see {log_file}: {_last_words(log_file)}")

    def _arguments(self) -> list[str]:
        settings = [part for setting in self._asked.settings for part in ("--set", setting)]
        return ["--profile", self._asked.profile, "--turns", str(self._asked.turns), *settings]

    def _look_at(self, home: Path) -> HomeResult:
        """Every check of a finished home."""
        drivers = [driver for driver in self._ledger.drivers() if driver.home == home.name]
        faults = Counter(fault.home for fault in self._ledger.faults())[home.name]
        processes = [left for driver in drivers for left in driver.left]
        files = sorted({Path(name) for driver in drivers for name in driver.held if Path(name).exists()})
        checks = compare(home, Standard.of(self._ledger.undisturbed), self._ledger.committed(home))
        return HomeResult(home.name, faults, len(drivers), (*checks, nothing_left(processes, files)))


def _last_words(log_file: Path) -> str:
    lines = log_file.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("flywheel: ") if lines else "it said nothing"
