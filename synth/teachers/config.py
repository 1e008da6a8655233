"""Configuration of teachers, separate from their code, which imports clients and engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from rl.engines.config import ServingEngineConfig
from rl.ray_runtime import RayConfig
from warehouse.settings import Section

HOW_ASKED = (
    "base_url", "api_key_variable", "concurrency", "requests_per_minute", "timeout_seconds", "attempts", "first_pause_seconds",
    "max_requests", "max_tokens", "usd_per_million",
)  # fmt: skip
"""Settings that affect access and cost of a teacher, but not its replies."""


class TeacherConfig(Section):
    """Teacher model that writes text for synthesis or judges trajectories, with its budget."""

    kind: Literal["oracle", "openai", "engine"] = "oracle"
    """`openai`: an OpenAI-compatible server; `engine`: local vLLM engines; `oracle`: the knowledge graph, without a model."""
    base_url: str | None = None
    """Server address including `/v1`; None: OpenAI."""
    model: str | None = None
    """Model name on the server; required for `kind = "openai"`."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the API key; the key itself is never stored."""
    token_limit_parameter: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Request parameter that limits completion tokens; newer OpenAI models require `max_completion_tokens`."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Additional request parameters, such as `{"chat_template_kwargs": {"enable_thinking": false}}`."""
    structured: bool | None = None
    """Constrain JSON replies to their schema, by a grammar or the server's `response_format`. None: engines only."""
    path: Path | None = None
    """Model folder; required for `kind = "engine"`."""
    engine: ServingEngineConfig = ServingEngineConfig()
    ray: RayConfig = RayConfig()
    concurrency: PositiveInt | None = None
    """Maximum concurrent requests; None: 16 for a server, 64 for engines."""
    requests_per_minute: PositiveFloat | None = None
    """Maximum requests per minute, retries included; None: no limit."""
    timeout_seconds: PositiveFloat | None = None
    """Timeout per attempt in seconds; None: 120 for a server, 1,800 for engines."""
    attempts: PositiveInt = 6
    """Maximum attempts per request."""
    first_pause_seconds: NonNegativeFloat = 1.0
    """Maximum pause before the second attempt, in seconds; doubles per attempt, with jitter. `Retry-After` takes precedence."""
    max_requests: PositiveInt | None = None
    """Request budget per home and teacher, retries included; None: no limit."""
    max_tokens: PositiveInt | None = None
    """Token budget per home and teacher, prompts included; None: no limit."""
    usd_per_million: tuple[NonNegativeFloat, NonNegativeFloat] | None = None
    """US dollars per million prompt tokens and per million completion tokens; `budget.usd` needs them of a server."""

    @model_validator(mode="after")
    def _check(self) -> TeacherConfig:
        if self.kind == "openai" and not self.model:
            raise ValueError("model is needed for kind = openai: the name of the model on the server")
        if self.kind == "engine" and self.path is None:
            raise ValueError("path is needed for kind = engine: the folder of the model")
        return self

    @property
    def is_model(self) -> bool:
        """Whether it can write and act; the oracle only answers questions."""
        return self.kind != "oracle"

    @property
    def holds_to_forms(self) -> bool:
        """Whether replies are constrained to the request's JSON schema."""
        return self.kind == "engine" if self.structured is None else self.structured

    @property
    def places(self) -> int:
        return self.concurrency or (64 if self.kind == "engine" else 16)

    @property
    def try_seconds(self) -> float:
        return self.timeout_seconds or (1_800.0 if self.kind == "engine" else 120.0)

    def usd(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Price of a completion; None if the prices are unknown."""
        if self.usd_per_million is None:
            return None
        prompt, completion = self.usd_per_million
        return (prompt_tokens * prompt + completion_tokens * completion) / 1e6

    @property
    def name(self) -> str:
        """Name used in cache keys of completions; changes with every setting that affects replies."""
        from warehouse.digests import digest

        model = self.path.name if self.kind == "engine" and self.path else self.model or ""
        parts = [self.kind, model, *([digest(self.extra, 8)] if self.extra else [])]
        return ":".join(part for part in parts if part)
