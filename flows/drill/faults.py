"""The faults of a drill, chosen before it begins: which kinds, in which order, after which pauses. All of it follows from the seed.

A kind cannot be made at every moment: there is no engine to kill while a corpus is generated. So the order is a wish. At each moment
that was drawn the first of the remaining kinds is made that is possible there, and at the end all of them have been made.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice

from warehouse.digests import seed_from


class FaultKind(StrEnum):
    """What is done to a run."""

    DRIVER = "driver"
    """SIGKILL of the process of `flywheel run`."""
    WORKER = "worker"
    """SIGKILL of a Ray worker that hosts environments."""
    ENGINE = "engine"
    """SIGKILL of an engine's process."""
    LEARNER = "learner"
    """SIGKILL of what learns while it learns: a worker of Ray Train, or the driver where it learns itself."""
    SERVER = "server"
    """SIGKILL of Prefect's temporary server."""
    DISK = "disk"
    """The filesystem of the home is full for some seconds."""


@dataclass(frozen=True, slots=True)
class Order:
    """The faults of a drill: `kinds` as wished, and for each place the seconds that pass before it."""

    kinds: tuple[FaultKind, ...]
    pauses: tuple[float, ...]

    def remaining(self, made: Mapping[FaultKind, int]) -> list[FaultKind]:
        """The kinds that are still to be made, in their order; `made` counts those that were, whichever they were."""
        left = Counter(made)
        kinds = []
        for kind in self.kinds:
            if left[kind]:
                left[kind] -= 1
            else:
                kinds.append(kind)
        return kinds


def order_faults(count: int, kinds: Sequence[FaultKind], seconds: float, seed: int) -> Order:
    """`count` faults in which every kind has its share, in an order and after pauses that follow from `seed`.

    Pauses are exponential with the mean `seconds`: a moment says nothing about the next one. None is under a second.
    """
    chance = random.Random(seed_from("drill", seed, count, list(kinds), seconds))
    shares = list(islice(cycle(kinds), count))
    chance.shuffle(shares)
    return Order(tuple(shares), tuple(max(1.0, chance.expovariate(1 / seconds)) for _ in range(count)))


def choose(remaining: Sequence[FaultKind], possible: Collection[FaultKind]) -> FaultKind | None:
    """The first of the remaining kinds that is possible now; None where none of them is."""
    return next((kind for kind in remaining if kind in possible), None)
