"""Protocol of inference engines: token ids in, token ids and log-probabilities out. Also the metrics of an engine pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rl.content import PlacedImage
from warehouse.errors import WorkFailed


class GenerationStop(StrEnum):
    """Why the engine stopped: at a stop token, or at `max_tokens`."""

    STOP = "stop"
    LENGTH = "length"


class EngineFault(WorkFailed):
    """The engine failed; the policy is not to blame."""


class EngineDead(EngineFault):
    """The engine process died. Tokens it had not returned are lost; another engine can retry the request from its context."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one continuation. Temperature 0 is greedy; the stop token is part of the output.

    `older` requests an engine that holds an older policy, if there is one. `form` is a JSON schema (as JSON) for `structured` engines.
    """

    temperature: float = 1.0
    max_tokens: int = 64
    stop_token_ids: tuple[int, ...] = ()
    top_p: float = 1.0
    seed: int | None = None
    older: bool = False
    form: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """A sampled continuation.

    `logprobs` are natural logarithms under the sampling distribution (after temperature and top-p; for greedy, the plain softmax).
    `policy_versions` holds the weight version that sampled each token. All three have the same length.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: GenerationStop
    policy_versions: tuple[int, ...]

    @property
    def policy_version(self) -> int:
        """Version that sampled the first token; 0 if nothing was sampled."""
        return next(iter(self.policy_versions), 0)


@dataclass(frozen=True, slots=True)
class WeightProbe:
    """An engine's continuation of a prompt with its log-probabilities, from which the learner tells which weights it has."""

    engine: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Generator(Protocol):
    """An inference engine or a pool. A request id names a trajectory, whose requests come one after another."""

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        """Continue `prompt_ids`, which include the placeholders of `images`. Raises `EngineFault`."""
        ...


class EngineState(StrEnum):
    """State of an engine within the pool."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"
    """Finishes its requests and takes no new ones."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Metrics of one engine; a request counts when it ends."""

    name: str
    state: EngineState
    policy_version: int
    in_flight: int
    trajectories: int
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """Metrics of a pool `seconds` after its start, including engines that left or died.

    `retaken`: requests reissued because their engine died or was removed. `replacements`: engines started for dead ones. `updates`: weight
    loads, `transfers` of them sent by the learner.
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
        """Requests in flight in all engines."""
        return sum(engine.in_flight for engine in self.engines)

    def tokens_per_second(self, since: PoolFigures | None = None) -> float:
        """Sampled tokens per second since `earlier`, or since the start; 0 if no time has passed."""
        seconds = self.seconds - (since.seconds if since else 0.0)
        tokens = self.tokens - (since.tokens if since else 0)
        return tokens / seconds if seconds > 0 else 0.0

    def metrics(self, since: PoolFigures | None = None) -> dict[str, float]:
        """The metrics under their names in the lake."""
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
