"""How much pressure an engine is under, from the statistics of each of its steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EnginePressure:
    """What an engine saw in `steps` steps since the last read.

    `kv_usage` is the maximum share of cache in use. `queue` is the standing queue: the minimum number of waiting requests over the steps,
    as in CoDel (RFC 8289), because a queue that drains at once is harmless. `preempted` counts requests evicted from the cache and
    recomputed.
    """

    steps: int = 0
    kv_usage: float = 0.0
    queue: int = 0
    preempted: int = 0


class PressureGauge:
    """Accumulates step statistics until they are read."""

    def __init__(self) -> None:
        self._seen = EnginePressure()

    def see(self, kv_usage: float, waiting: int, preempted: int) -> None:
        seen = self._seen
        queue = min(seen.queue, waiting) if seen.steps else waiting
        self._seen = EnginePressure(seen.steps + 1, max(seen.kv_usage, kv_usage), queue, seen.preempted + preempted)

    def take(self) -> EnginePressure:
        """The pressure since the last read."""
        seen, self._seen = self._seen, EnginePressure()
        return seen
