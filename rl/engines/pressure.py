"""How hard an engine is pressed, from what it says of each of its steps: how full its cache is, who waits, who was thrown out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EnginePressure:
    """What an engine saw in its `steps` since it was last asked.

    `kv_usage` is the largest share of the cache that was in use. `queue` is the standing queue: the smallest number of requests that waited
    in any step, as in CoDel (RFC 8289), for a queue that is gone in a moment is no sign of too many. `preempted` counts requests that
    lost their place in the cache to others and are computed again.
    """

    steps: int = 0
    kv_usage: float = 0.0
    queue: int = 0
    preempted: int = 0


class PressureGauge:
    """Takes what an engine says of each step, until somebody asks."""

    def __init__(self) -> None:
        self._seen = EnginePressure()

    def see(self, kv_usage: float, waiting: int, preempted: int) -> None:
        """Take in one step."""
        seen = self._seen
        queue = min(seen.queue, waiting) if seen.steps else waiting
        self._seen = EnginePressure(seen.steps + 1, max(seen.kv_usage, kv_usage), queue, seen.preempted + preempted)

    def take(self) -> EnginePressure:
        """What was seen since this was last asked."""
        seen, self._seen = self._seen, EnginePressure()
        return seen
