"""Protocol of inference engines: token ids in, token ids and log-probabilities out; and metrics of an engine pool."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from rl.content import PlacedImage
from warehouse.errors import WorkFailed


class GenerationStop(StrEnum):
    """Why generation stopped: at a stop token, or at `max_tokens`."""

    STOP = "stop"
    LENGTH = "length"


class EngineFault(WorkFailed):
    """The engine failed; not the policy's fault."""


class EngineDead(EngineFault):
    """The engine process died. Tokens it had not returned are lost; the request can be retried on another engine."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one continuation. Temperature 0 is greedy; the stop token is part of the output.

    `older` requests an engine with an older policy, if there is one. `form` is a JSON schema, as JSON text, for `structured` engines.
    `streamed` makes an engine report tokens before the end.
    """

    temperature: float = 1.0
    max_tokens: int = 64
    stop_token_ids: tuple[int, ...] = ()
    top_p: float = 1.0
    seed: int | None = None
    older: bool = False
    form: str | None = None
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """A sampled continuation; `token_ids`, `logprobs` and `policy_versions` have the same length.

    `logprobs` are natural logarithms under the sampling distribution (after temperature and top-p; for greedy sampling, the plain softmax).
    `policy_versions` is the weight version that sampled each token.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: GenerationStop
    policy_versions: tuple[int, ...]

    @property
    def policy_version(self) -> int:
        """Weight version of the first token; 0 if nothing was sampled."""
        return next(iter(self.policy_versions), 0)


@dataclass(frozen=True, slots=True)
class WeightProbe:
    """An engine's continuation of a prompt, by whose log-probabilities the learner checks the engine's weights."""

    engine: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Generator(Protocol):
    """An inference engine or a pool. `request_id` names a trajectory, whose requests are sequential."""

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        """Continue `prompt_ids`, which include the placeholders of `images`. Raises `EngineFault`."""
        ...


@runtime_checkable
class StreamingGenerator(Protocol):
    """A generator that also returns tokens as they are sampled."""

    def stream(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[tuple[int, ...] | Generation, None]:
        """Continue `prompt_ids`: yields sampled ids as they come, and last the whole generation. Raises `EngineFault`."""
        ...


class EngineState(StrEnum):
    """State of an engine within the pool."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"
    """Finishing its requests; accepts no new ones."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Metrics of one engine; requests and tokens count when a request ends."""

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

    `retaken`: requests reissued because their engine died or was removed. `replacements`: engines started in place of dead ones. `updates`:
    weight loads, `transfers` of them sent by the learner.
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
        return sum(engine.in_flight for engine in self.engines)

    def tokens_per_second(self, since: PoolFigures | None = None) -> float:
        """Sampled tokens per second since the earlier figures `since`, or since the start; 0 if no time has passed."""
        seconds = self.seconds - (since.seconds if since else 0.0)
        tokens = self.tokens - (since.tokens if since else 0)
        return tokens / seconds if seconds > 0 else 0.0

    def metrics(self, since: PoolFigures | None = None) -> dict[str, float]:
        """Metrics under their names in the lake."""
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
    """Load of an engine over the `steps` engine steps since the last reading.

    `kv_usage`: maximum fraction of KV cache in use. `queue`: standing queue, the minimum number of waiting requests over the steps, as in
    CoDel (RFC 8289), since a queue that drains at once is harmless. `preempted`: requests evicted from the cache and recomputed.
    """

    steps: int = 0
    kv_usage: float = 0.0
    queue: int = 0
    preempted: int = 0


class PressureGauge:
    """Accumulates step statistics until read."""

    def __init__(self) -> None:
        self._seen = EnginePressure()

    def see(self, kv_usage: float, waiting: int, preempted: int) -> None:
        seen = self._seen
        queue = min(seen.queue, waiting) if seen.steps else waiting
        self._seen = EnginePressure(seen.steps + 1, max(seen.kv_usage, kv_usage), queue, seen.preempted + preempted)

    def take(self) -> EnginePressure:
        """Return the pressure since the last call and reset."""
        seen, self._seen = self._seen, EnginePressure()
        return seen
