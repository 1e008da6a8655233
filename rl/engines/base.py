"""The protocol of inference engines: token ids in, token ids and their log-probabilities out. And the figures of a pool of engines."""

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
    """The engine failed; that says nothing about the policy."""


class EngineDead(EngineFault):
    """The engine itself has died: what it had sampled and not returned is lost, and another can take the request up from its context."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one continuation. Temperature 0 is greedy; the stop token is kept in what comes back.

    `older` asks for an older policy, where there are engines that hold one. `form` is a JSON schema, as JSON, that the continuation is held
    to, by engines that are `structured`.
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
    """A continuation that the engine sampled.

    `logprobs` are natural logarithms under the distribution that was sampled from, so after temperature and top-p (greedy: of
    the plain softmax). `policy_versions` is, for each token, the version of the weights that sampled it: one continuation has
    several where the weights were replaced in its middle. All three have equal length.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: GenerationStop
    policy_versions: tuple[int, ...]

    @property
    def policy_version(self) -> int:
        """The version that sampled the first token; 0 where nothing was sampled."""
        return next(iter(self.policy_versions), 0)


@dataclass(frozen=True, slots=True)
class WeightProbe:
    """What the engine of that name sampled behind a prompt, and its log-probability of each token: what tells which weights it has."""

    engine: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Generator(Protocol):
    """An inference engine, or a pool of them. A request id names a trajectory: its requests come one after the other."""

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        """Continue `prompt_ids`, among which stand the placeholders of `images`. Raises `EngineFault` where the engine fails."""
        ...


class EngineState(StrEnum):
    """The state of an engine within the pool."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"
    """It takes no new requests and finishes those it has."""


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
    """A pool `seconds` after its start. The counts include engines that have left or died.

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
        """The figures by their names in the lake's `metrics`."""
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
