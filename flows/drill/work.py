"""A drill: the wheel undisturbed, the wheel under faults until all of them were made, the comparison."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from flows.drill.comparing import Check, Standard, compare, nothing_left
from flows.drill.disk import full_disk, why_not_filled
from flows.drill.driving import Driver
from flows.drill.faults import FaultKind, choose, order_faults
from flows.drill.lakes import committed, finished
from flows.drill.ledger import DriverEnd, Ledger, Made
from flows.drill.processes import Process, kill, targets
from warehouse.digests import seed_from
from warehouse.errors import RequestError, WorkFailed

log = logging.getLogger("flywheel")

LOOK_SECONDS = 0.5
"""Pause between two looks at a driver."""
FULL_SECONDS = (2.0, 8.0)
"""How long a disk stays full: drawn between these."""
REFUSED = 2
"""Exit status of `flywheel run` where the request was wrong, or the home is in use."""


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


@dataclass(slots=True)
class Drill:
    """A drill in its folder; `run` begins it, or goes on with it."""

    ledger: Ledger
    asked: Asked
    _waits_until: float = field(default=0.0)

    def run(self) -> DrillResult:
        """Run what is left to run, and compare.

        Raises:
            RequestError: the folder is another drill's, or one of its homes is in use.
            WorkFailed: a wheel cannot go on, though nothing was done to its last driver.
        """
        self.ledger.claim(asdict(self.asked))
        left_out = why_not_filled(self.ledger.root)
        kinds = tuple(kind for kind in self.asked.kinds if kind is not FaultKind.DISK or left_out is None)
        order = order_faults(self.asked.faults, kinds, self.asked.seconds, self.asked.seed)
        if not order.remaining(self.ledger.made()) and not self._unfinished():
            log.info("nothing to do: the drill in %s is done", self.ledger.root)
        self._turn(self.ledger.undisturbed, [], order.pauses)
        while (remaining := order.remaining(self.ledger.made())) or self._unfinished():
            home = next(iter(self._unfinished()), self.ledger.disturbed(len(self.ledger.disturbed_homes()) + 1))
            self._turn(home, remaining, order.pauses)
            if remaining and len(order.remaining(self.ledger.made())) == len(remaining):
                raise WorkFailed(f"the wheel in {home} ended before a moment for {remaining[0]} came; ask for a smaller --every.")
        told = left_out if FaultKind.DISK in self.asked.kinds else None
        return DrillResult(tuple(map(self._look_at, self.ledger.disturbed_homes())), tuple(self.ledger.faults()), told)

    def _unfinished(self) -> list[Path]:
        return [home for home in self.ledger.disturbed_homes() if not finished(home, self.asked.turns)]

    def _turn(self, home: Path, remaining: Sequence[FaultKind], pauses: Sequence[float]) -> None:
        """Start the wheel in `home` again and again until it is finished, and make faults meanwhile as long as any remain."""
        left = list(remaining)
        while not finished(home, self.asked.turns):
            with Driver(home, self._arguments(), self.ledger.log(home)) as driver:
                self._wait(pauses)
                while driver.status is None:
                    time.sleep(LOOK_SECONDS)
                    run = driver.processes()
                    if left and time.monotonic() >= self._waits_until:
                        self._strike(driver, run, left, pauses)
            self._end(driver)

    def _wait(self, pauses: Sequence[float]) -> None:
        """Draw the moment of the next fault; the last one is followed by none."""
        done = len(self.ledger.faults())
        self._waits_until = time.monotonic() + (pauses[done] if done < len(pauses) else 0.0)

    def _strike(self, driver: Driver, run: list[Process], left: list[FaultKind], pauses: Sequence[float]) -> None:
        """Make the first of the faults that is possible now; where none is, a later look may find one."""
        at_work = driver.at_work()
        stage = at_work[1] if at_work else None
        struck = {kind: targets(kind, driver.id, run, stage) for kind in set(left)}
        kind = choose(left, {kind for kind, found in struck.items() if found or (kind is FaultKind.DISK and at_work)})
        if kind is None:
            return
        chance = random.Random(seed_from(self.asked.seed, len(self.ledger.faults())))
        seen = committed(driver.home)
        self.ledger.note_committed(driver.home, seen)
        process = None if kind is FaultKind.DISK else chance.choice(sorted(struck[kind], key=lambda each: each.id))
        moment = datetime.now(UTC).isoformat()
        if process is None:
            with full_disk(self.ledger.root):
                time.sleep(chance.uniform(*FULL_SECONDS))
        elif not kill(process):
            return
        made = Made(driver.home.name, moment, kind, process.id if process else None, at_work[0] if at_work else None, len(seen))
        self.ledger.note(made)
        left.remove(kind)
        driver.faults += 1
        log.info(
            "fault %d of %d in %s: %s, %s", len(self.ledger.faults()), self.asked.faults, made.home, kind, made.at_work or "nothing at work"
        )
        self._wait(pauses)

    def _end(self, driver: Driver) -> None:
        """Write down how a driver ended. Raises where it did without a fault, and not because it was done."""
        status = driver.status
        assert status is not None, "it was waited for"
        home, file, seconds = driver.home, self.ledger.log(driver.home), round(time.monotonic() - driver.began, 1)
        left = tuple(f"{each.id} {each.title[:80]}" for each in driver.left)
        self.ledger.note(DriverEnd(home.name, driver.id, seconds, status, driver.faults, left, tuple(sorted(map(str, driver.held)))))
        log.info("%s: driver %d ended with status %d after %.0f s and %d faults", home.name, driver.id, status, seconds, driver.faults)
        if status == REFUSED:
            raise RequestError(f"{_last_words(file)} (flywheel run, in {file})")
        if status and not driver.faults:
            raise WorkFailed(f"the wheel in {home} cannot go on, see {file}: {_last_words(file)}")

    def _arguments(self) -> list[str]:
        settings = [part for setting in self.asked.settings for part in ("--set", setting)]
        return ["--profile", self.asked.profile, "--turns", str(self.asked.turns), *settings]

    def _look_at(self, home: Path) -> HomeResult:
        """Every check of a finished home."""
        drivers = [driver for driver in self.ledger.drivers() if driver.home == home.name]
        faults = Counter(fault.home for fault in self.ledger.faults())[home.name]
        processes = [left for driver in drivers for left in driver.left]
        files = sorted({Path(name) for driver in drivers for name in driver.held if Path(name).exists()})
        checks = compare(home, Standard.of(self.ledger.undisturbed), self.ledger.committed(home))
        return HomeResult(home.name, faults, len(drivers), (*checks, nothing_left(processes, files)))


def _last_words(log_file: Path) -> str:
    lines = log_file.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("flywheel: ") if lines else "it said nothing"
