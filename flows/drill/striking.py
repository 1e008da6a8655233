"""Making a fault: the moment comes, one of the remaining kinds is possible, what is committed is noted, the blow falls."""

from __future__ import annotations

import logging
import random
import time
from datetime import UTC, datetime

from flows.drill.disk import full_disk
from flows.drill.driving import Driver
from flows.drill.faults import FaultKind, Order, choose
from flows.drill.lakes import committed_at
from flows.drill.ledger import Ledger, Made
from flows.drill.processes import Process, kill, targets
from warehouse.digests import seed_from

log = logging.getLogger("flywheel")

FULL_SECONDS = (2.0, 8.0)
"""How long a disk stays full: drawn between these."""


class Striker:
    """Makes the faults of an order, whichever of them are not made yet."""

    def __init__(self, ledger: Ledger, order: Order, seed: int) -> None:
        self._ledger = ledger
        self._order = order
        self._seed = seed
        self._moment = 0.0

    @property
    def remaining(self) -> list[FaultKind]:
        """The kinds that are still to be made."""
        return self._order.remaining(self._ledger.made())

    def wait(self) -> None:
        """Draw the moment of the next fault, from now."""
        done = len(self._ledger.faults())
        self._moment = time.monotonic() + (self._order.pauses[done] if done < len(self._order.pauses) else 0.0)

    def look(self, driver: Driver) -> None:
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
        seen = committed_at(driver.home)
        self._ledger.note_committed(driver.home, seen)
        moment, chance = datetime.now(UTC).isoformat(), random.Random(seed_from(self._seed, len(self._ledger.faults())))
        process = None if kind is FaultKind.DISK else chance.choice(sorted(found[kind], key=lambda each: each.id))
        if self._make(process, chance):
            made = Made(driver.home.name, moment, kind, process.id if process else None, at_work[0] if at_work else None, len(seen))
            self._ledger.note(made)
            driver.faults += 1
            log.info("%s: %s while %s, %d faults to go", made.home, kind, made.at_work or "nothing was at work", len(remaining) - 1)
            self.wait()

    def _make(self, process: Process | None, chance: random.Random) -> bool:
        """Kill the process, or fill the disk for a while where there is none to kill; whether that was done."""
        if process is not None:
            return kill(process)
        with full_disk(self._ledger.root):
            time.sleep(chance.uniform(*FULL_SECONDS))
        return True
