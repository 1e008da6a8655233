"""What an inference engine is to the rest of the house: token ids in, token ids and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rl.content import PlacedImage


class GenerationStop(StrEnum):
    """Why the engine stopped: at a stop token, or at `max_tokens`."""

    STOP = "stop"
    LENGTH = "length"


class EngineFault(Exception):
    """The engine failed; the request says nothing about the policy."""


class EngineDead(EngineFault):
    """The engine itself is gone: what it had sampled and not returned is lost, and another can take the request up from its context."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one continuation. Temperature 0 is greedy; the stop token is kept in what comes back.

    `older` asks for an older policy, where there are engines that hold one.
    """

    temperature: float = 1.0
    max_tokens: int = 64
    stop_token_ids: tuple[int, ...] = ()
    top_p: float = 1.0
    seed: int | None = None
    older: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """What the engine sampled.

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
        """The version that sampled the first token; 0 where nothing was sampled, as a teacher that says nothing does."""
        return next(iter(self.policy_versions), 0)


class Engine(Protocol):
    """One inference engine, or a pool of them. A request id names a trajectory: its requests come one after the other."""

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        """Continue `prompt_ids`, among which stand the placeholders of `images`. Raises `EngineFault` where the engine fails."""
        ...

    async def load_weights(self, path: str, version: int) -> None:
        """Take the weights in folder `path` as `version`, and forget every cached prefix.

        Requests under way keep their tokens and go on with the new weights, or end under the old ones before: as configured.
        """
        ...

    async def pause(self) -> None:
        """Stop sampling until `resume`; requests under way wait with their tokens, or end first: as configured."""
        ...

    async def resume(self) -> None:
        """Go on after `pause`."""
        ...

    async def sleep(self) -> None:
        """Pause, and give back the accelerator's memory until `wake`; the weights are kept."""
        ...

    async def wake(self) -> None:
        """Come back from `sleep`, and go on."""
        ...
