"""Reservations of CPUs and GPUs from Ray, and a check that they fit the available machines.

The configurations of engines, learners and environments state what each reserves; actors and pre-run checks count the same bundles. A
bundle lies on one machine. This module does not import Ray.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

ROUNDING = 1e-4
"""Ray counts resources in ten-thousandths."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """CPUs and GPUs on one machine; `gpus` below 1 is a share of one GPU."""

    cpus: float
    gpus: float

    @property
    def resources(self) -> dict[str, float]:
        """Ray's resource dictionary, without zeros."""
        return {name: amount for name, amount in {"CPU": self.cpus, "GPU": self.gpus}.items() if amount}

    def __str__(self) -> str:
        shown = [(self.gpus, "GPU"), (self.cpus, "CPU")]
        return " and ".join(f"{amount:g} {unit}{'s' if amount > 1 else ''}" for amount, unit in shown if amount) or "nothing"


@dataclass(frozen=True, slots=True)
class Reservation:
    """Bundles that one part of the configuration (`key`) reserves while it runs."""

    key: str
    bundles: tuple[Bundle, ...]

    def __str__(self) -> str:
        sizes = Counter(map(str, self.bundles))
        return f"{self.key} ({', '.join(f'{count} times {size}' for size, count in sizes.items())})"


@dataclass(frozen=True, slots=True)
class Machine:
    """A Ray machine; `cpus` is infinite where CPUs may be oversubscribed, as on the local machine."""

    name: str
    cpus: float
    gpus: int

    def __str__(self) -> str:
        cpus = "" if math.isinf(self.cpus) else f" and {self.cpus:g} CPUs"
        return f"{self.name} with {self.gpus} GPU{'' if self.gpus == 1 else 's'}{cpus}"


@dataclass(frozen=True, slots=True)
class Placed:
    """A bundle of reservation `key` on the machine with index `machine`."""

    key: str
    bundle: Bundle
    machine: int


class NoRoom(Exception):
    """No machine has room for `bundle` of `reservation`."""

    def __init__(self, reservation: Reservation, bundle: Bundle) -> None:
        super().__init__(f"{reservation.key}: no machine has {bundle} left")
        self.reservation = reservation
        self.bundle = bundle


def total_cpus(reservations: Iterable[Reservation]) -> float:
    return sum(bundle.cpus for reservation in reservations for bundle in reservation.bundles)


def place(reservations: Sequence[Reservation], machines: Sequence[Machine]) -> list[Placed]:
    """Assign a machine to each bundle, largest bundle first, tightest fit first, as Ray's raylet does; whole GPUs are never shared.

    Raises:
        NoRoom: a bundle does not fit.
    """
    wanted = [(reservation, bundle) for reservation in reservations for bundle in reservation.bundles]
    rooms = [_Room(machine.cpus, [1.0] * machine.gpus) for machine in machines]
    placed = []
    for reservation, bundle in sorted(wanted, key=lambda pair: (-pair[1].gpus, -pair[1].cpus)):
        fitting = [number for number, room in enumerate(rooms) if room.holds(bundle)]
        if not fitting:
            raise NoRoom(reservation, bundle)
        tightest = min(fitting, key=lambda number: rooms[number].left_by(bundle))
        rooms[tightest].take(bundle)
        placed.append(Placed(reservation.key, bundle, tightest))
    return placed


@dataclass(slots=True)
class _Room:
    cpus: float
    cards: list[float] = field(default_factory=list)
    """Free share of each GPU."""

    def holds(self, bundle: Bundle) -> bool:
        return bundle.cpus <= self.cpus + ROUNDING and self._cards_for(bundle.gpus) is not None

    def left_by(self, bundle: Bundle) -> tuple[float, float]:
        """GPUs and CPUs left after `bundle`; sorts machines without GPUs first for bundles without GPUs."""
        return sum(self.cards) - bundle.gpus, self.cpus - bundle.cpus

    def take(self, bundle: Bundle) -> None:
        self.cpus -= bundle.cpus
        for card in self._cards_for(bundle.gpus) or ():
            self.cards[card] -= min(bundle.gpus, 1.0)

    def _cards_for(self, gpus: float) -> list[int] | None:
        """Indices of the GPUs to use; None if there are too few."""
        if not gpus:
            return []
        if gpus < 1:
            shared = [number for number, left in enumerate(self.cards) if left + ROUNDING >= gpus]
            return [min(shared, key=lambda number: self.cards[number])] if shared else None
        free = [number for number, left in enumerate(self.cards) if left > 1 - ROUNDING]
        return free[: math.ceil(gpus)] if len(free) >= gpus else None
