"""What a pool of engines has done and is doing, as a value: for a live view, for the lake's `metrics`, for a test."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EngineState(StrEnum):
    """Where an engine stands in its life within the pool."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"
    """It takes no new requests and ends those it has."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine: requests and sampled tokens are counted when a request has ended."""

    name: str
    state: EngineState
    policy_version: int
    in_flight: int
    trajectories: int
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """A pool `seconds` after its start. The counts are of its whole life, engines that have left or died included.

    `retaken` counts requests that were issued again because their engine died or was taken out, `replacements` engines that were
    started in the place of dead ones, `updates` loaded weights, `transfers` those of them that the learner sent.
    """

    seconds: float
    engines: tuple[EngineFigures, ...]
    requests: int
    tokens: int
    retaken: int
    replacements: int
    updates: int
    transfers: int

    @property
    def in_flight(self) -> int:
        """Requests under way in all engines."""
        return sum(engine.in_flight for engine in self.engines)

    def tokens_per_second(self, since: PoolFigures | None = None) -> float:
        """Sampled tokens a second since earlier figures of the same pool, or since its start; 0 where no time has passed."""
        seconds = self.seconds - (since.seconds if since else 0.0)
        tokens = self.tokens - (since.tokens if since else 0)
        return tokens / seconds if seconds > 0 else 0.0

    def metrics(self, since: PoolFigures | None = None) -> dict[str, float]:
        """The figures by the names that they have in the lake's `metrics`."""
        return {
            "engine_requests": float(self.requests),
            "engine_tokens": float(self.tokens),
            "engine_tokens_per_second": self.tokens_per_second(since),
            "engine_retaken": float(self.retaken),
            "engine_replacements": float(self.replacements),
            "engine_updates": float(self.updates),
            "engine_transfers": float(self.transfers),
            "engines_serving": float(sum(engine.state is EngineState.SERVING for engine in self.engines)),
            **{f"engine_in_flight/{engine.name}": float(engine.in_flight) for engine in self.engines},
        }
