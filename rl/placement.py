"""What engines, learners, environments and tools reserve of Ray, and whether that finds room on the machines there are.

One definition of each: what starts an actor takes its options from here, and what checks a configuration before anything starts counts
the same bundles. A bundle lies on one machine. Pure: machines are values, and nothing here knows Ray.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rl.engines.config import EngineConfig, ServingEngineConfig
from rl.envs.config import EnvironmentPoolConfig
from rl.learner.config import LearnerConfig
from rl.rollouts.config import RolloutConfig

ROUNDING = 1e-4
"""Ray counts resources in ten thousandths."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """CPUs and GPUs that are had together, on one machine. Less than one GPU is a share of one card."""

    cpus: float
    gpus: float

    @property
    def resources(self) -> dict[str, float]:
        """As Ray writes them, without what is 0."""
        return {name: amount for name, amount in {"CPU": self.cpus, "GPU": self.gpus}.items() if amount}

    def __str__(self) -> str:
        shown = [(self.gpus, "GPU"), (self.cpus, "CPU")]
        return " and ".join(f"{amount:g} {unit}{'s' if amount > 1 else ''}" for amount, unit in shown if amount) or "nothing"


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one part of the configuration reserves while it is up, by the key that says so."""

    key: str
    bundles: tuple[Bundle, ...]

    def __str__(self) -> str:
        sizes = Counter(map(str, self.bundles))
        return f"{self.key} ({', '.join(f'{count} times {size}' for size, count in sizes.items())})"


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of Ray's. Where CPUs may be promised more than once, as on one's own machine, they are infinitely many."""

    name: str
    cpus: float
    gpus: int

    def __str__(self) -> str:
        cpus = "" if math.isinf(self.cpus) else f" and {self.cpus:g} CPUs"
        return f"{self.name} with {self.gpus} GPU{'' if self.gpus == 1 else 's'}{cpus}"


@dataclass(frozen=True, slots=True)
class Placed:
    """One bundle of a reservation, on the machine of that position."""

    key: str
    bundle: Bundle
    machine: int


class NoRoom(Exception):
    """`bundle` of `reservation` finds no machine."""

    def __init__(self, reservation: Reservation, bundle: Bundle) -> None:
        super().__init__(f"{reservation.key}: no machine has {bundle} left")
        self.reservation = reservation
        self.bundle = bundle


def engine_bundles(config: ServingEngineConfig) -> tuple[Bundle, ...]:
    """What one engine reserves: one bundle, or one for each of its workers where these are actors of their own."""
    count = config.tensor_parallel if config.workers == "ray" else 1
    return (Bundle(config.cpus / count, config.gpus / count),) * count


def engines(key: str, config: ServingEngineConfig) -> Reservation:
    """All engines of a pool, those of an older policy included."""
    return Reservation(key, engine_bundles(config) * config.total)


def learner_threads(in_turns: bool, engines: EngineConfig, there: int) -> int:
    """Threads of a learner in the process that runs the stage, of those that are `there`.

    Where rollouts run beside it, engines on CPUs have theirs to themselves: a learner that wants them too slows both down.
    """
    return there if in_turns or engines.gpus else max(there - engines.count * engines.threads, 1)


def learner_bundle(config: LearnerConfig) -> Bundle:
    """What one of a learner's workers reserves."""
    return Bundle(config.cpus, config.gpus)


def learner(key: str, config: LearnerConfig) -> Reservation:
    """A learner: nothing where it is the process that runs the stage."""
    return Reservation(key, (learner_bundle(config),) * config.workers if config.on_ray else ())


def environments(config: EnvironmentPoolConfig, names: Iterable[str]) -> list[Reservation]:
    """The workers of the environments called `names`."""
    kinds = {name: config.kind(name) for name in sorted(set(names))}
    key = "rollout.environments"
    return [
        Reservation(f"{key}.kinds.{name}" if name in config.kinds else key, (Bundle(kind.cpus, kind.gpus),) * kind.workers)
        for name, kind in kinds.items()
    ]


def rollout_cpus(config: RolloutConfig) -> float:
    """CPUs to start Ray with on one's own machine: for engines, and for all environments that tasks are likely to ask for."""
    return total_cpus([engines("rollout.engine", config.engine)]) + config.environments.reserved_cpus


def total_cpus(reservations: Iterable[Reservation]) -> float:
    """CPUs of all of them."""
    return sum(bundle.cpus for reservation in reservations for bundle in reservation.bundles)


def place(reservations: Sequence[Reservation], machines: Sequence[Machine]) -> list[Placed]:
    """A machine for each bundle: the largest first, each where the least is left, so that what is whole stays whole.

    A share of a GPU lies on one card, on the one where the least is left, as Ray's raylet chooses it; whole GPUs are cards that nobody
    shares.

    Raises:
        NoRoom: the first bundle for which there is none.
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
    """What is left of a machine: CPUs, and of each card."""

    cpus: float
    cards: list[float] = field(default_factory=list)

    def holds(self, bundle: Bundle) -> bool:
        """Whether there is room."""
        return bundle.cpus <= self.cpus + ROUNDING and self._cards_for(bundle.gpus) is not None

    def left_by(self, bundle: Bundle) -> tuple[float, float]:
        """GPUs and CPUs that would be left, those of a bundle without GPUs on machines without any first."""
        return sum(self.cards) - bundle.gpus, self.cpus - bundle.cpus

    def take(self, bundle: Bundle) -> None:
        """Take it out."""
        self.cpus -= bundle.cpus
        for card in self._cards_for(bundle.gpus) or ():
            self.cards[card] -= min(bundle.gpus, 1.0)

    def _cards_for(self, gpus: float) -> list[int] | None:
        """The cards that `gpus` would lie on; None where there are too few."""
        if not gpus:
            return []
        if gpus < 1:
            shared = [number for number, left in enumerate(self.cards) if left + ROUNDING >= gpus]
            return [min(shared, key=lambda number: self.cards[number])] if shared else None
        free = [number for number, left in enumerate(self.cards) if left > 1 - ROUNDING]
        return free[: math.ceil(gpus)] if len(free) >= gpus else None
