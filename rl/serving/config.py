"""The configuration of the OpenAI-compatible endpoint; it stands apart from the code, which imports engines."""

from __future__ import annotations

from pydantic import NonNegativeInt, model_validator

from warehouse.settings import Section


class ServingConfig(Section):
    """The OpenAI-compatible endpoint over the engines."""

    host: str = "127.0.0.1"
    port: NonNegativeInt = 0
    """0 takes one that is free."""
    api_key: str | None = None
    """What clients must bear; needed where others than this machine can reach the endpoint."""
    dialect: str = "chat"
    """How messages stand in tokens: `chat`, or one of `rollout.dialects` of that kind."""
    stage: str = "rl"
    """The stage that recorded trajectories bear."""
    run: str | None = None
    """What the ids of conversations begin with that clients do not name; None is another one for each server."""

    @model_validator(mode="after")
    def _check_key(self) -> ServingConfig:
        if self.api_key is None and self.host not in ("127.0.0.1", "localhost", "::1"):
            raise ValueError("serving.api_key is needed where serving.host is not this machine alone")
        return self
