"""The faults of a chaos test: kinds, order and pauses follow from the seed.

The order is a wish, for there is no engine to kill while a corpus is generated: at each moment the first of the remaining kinds is made
that is possible. A disk is really filled, by a file, and emptied again; only a filesystem that holds nothing but the chaos test is filled.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path

from warehouse.digests import seed_from

LARGEST_GIB = 4.0
"""A filesystem larger than this is not filled: a tmpfs takes the machine's memory."""
LEAST_BYTES = 4096


class FaultKind(StrEnum):
    DRIVER = "driver"
    """SIGKILL of the process of `flywheel run`."""
    WORKER = "worker"
    """SIGKILL of a Ray worker that hosts environments."""
    ENGINE = "engine"
    """SIGKILL of an engine's process."""
    LEARNER = "learner"
    """SIGKILL of what learns while it learns: a worker of the learner, or the driver where it learns itself."""
    SERVER = "server"
    """SIGKILL of Prefect's temporary server."""
    DISK = "disk"
    """The filesystem of the home is full for some seconds."""


@dataclass(frozen=True, slots=True)
class Order:
    """Kinds as wished, and for each place the seconds that pass before it."""

    kinds: tuple[FaultKind, ...]
    pauses: tuple[float, ...]

    def remaining(self, made: Mapping[FaultKind, int]) -> list[FaultKind]:
        """The kinds that are still to be made, in their order."""
        left = Counter(made)
        kinds = []
        for kind in self.kinds:
            if left[kind]:
                left[kind] -= 1
            else:
                kinds.append(kind)
        return kinds


def order_faults(count: int, kinds: Sequence[FaultKind], seconds: float, seed: int) -> Order:
    """Every kind has its share; pauses are exponential with the mean `seconds`, and none is under a second."""
    chance = random.Random(seed_from("drill", seed, count, list(kinds), seconds))
    shares = list(islice(cycle(kinds), count))
    chance.shuffle(shares)
    return Order(tuple(shares), tuple(max(1.0, chance.expovariate(1 / seconds)) for _ in range(count)))


def choose(remaining: Sequence[FaultKind], possible: Collection[FaultKind]) -> FaultKind | None:
    return next((kind for kind in remaining if kind in possible), None)


def why_not_filled(folder: Path) -> str | None:
    """Why the disk under `folder` cannot be filled, and how to get one that can."""
    total = shutil.disk_usage(folder).total
    if os.path.ismount(folder) and total <= LARGEST_GIB * 1024**3:
        return None
    return (
        f"No fault fills a disk: {folder} is no filesystem of its own of at most {LARGEST_GIB:g} GiB; to have one, "
        f"`mount -t tmpfs -o size=1g tmpfs {folder}` before the chaos test."
    )


@contextmanager
def full_disk(folder: Path) -> Iterator[int]:
    """No byte is free under `folder` until the block is left; gives the bytes that it took."""
    file = folder / "filling"
    try:
        yield _fill(file)
    finally:
        file.unlink(missing_ok=True)


def _fill(file: Path) -> int:
    taken = 0
    with file.open("wb") as filling:
        piece = shutil.disk_usage(file.parent).free
        while piece >= LEAST_BYTES:
            try:
                os.posix_fallocate(filling.fileno(), taken, piece)
                taken += piece
            except OSError:  # ENOSPC: some of it is kept for others
                piece //= 2
    return taken
