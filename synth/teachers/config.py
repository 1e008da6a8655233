"""The configuration of teachers; it stands apart from their code, which imports clients and engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from rl.engines.config import EngineConfig
from rl.ray_runtime import RayConfig
from warehouse.settings import Section

HOW_ASKED = (
    "base_url", "api_key_variable", "concurrency", "requests_per_minute", "timeout_seconds", "attempts", "first_pause_seconds",
    "longest_pause_seconds", "max_requests", "max_tokens",
)  # fmt: skip
"""The settings of a teacher that say how it is reached and what it may cost, and nothing of what it would say."""


class TeacherConfig(Section):
    """Who writes text for synthesis, and what that may cost."""

    kind: Literal["oracle", "openai", "engine"] = "oracle"
    """`oracle` answers from the graph and needs no model; `openai` is any OpenAI-compatible server; `engine` our own engines."""
    base_url: str | None = None
    """Address of the server up to and with `/v1`; None is OpenAI's own."""
    model: str | None = None
    """The name under which the server knows the model."""
    api_key_variable: str = "OPENAI_API_KEY"
    """The environment variable that holds the key: the key itself stands in no configuration and in no lake."""
    token_limit_parameter: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls the limit of a completion; OpenAI's newer models refuse the older name."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """More parameters of every request, such as `{"chat_template_kwargs": {"enable_thinking": false}}`."""
    structured: bool | None = None
    """Hold replies that are to be JSON to the schema of what is asked for, so that a small model writes nothing that cannot be read: an
    engine by a grammar, a server by `response_format`, which vLLM, SGLang, llama.cpp and Ollama take and others may refuse. None: engines
    do, servers do not. A model that thinks before it speaks has to be told not to."""
    path: Path | None = None
    """Folder of the model that engines serve."""
    engine: EngineConfig = EngineConfig()
    ray: RayConfig = RayConfig()
    concurrency: PositiveInt = 16
    """Requests in flight."""
    requests_per_minute: PositiveFloat | None = None
    """Requests are started at even distances, at most so many a minute; retries count."""
    timeout_seconds: PositiveFloat | None = None
    """A single try that takes longer is given up. None: two minutes for a server, half an hour for our own engines, where nothing is lost
    on the way and what is slow would be as slow once more."""
    attempts: PositiveInt = 6
    """Tries of one request before it counts as failed."""
    first_pause_seconds: NonNegativeFloat = 1.0
    """Longest pause before the second try; it doubles from try to try, and is drawn at random below that. `Retry-After` wins."""
    longest_pause_seconds: PositiveFloat = 60.0
    max_requests: PositiveInt | None = None
    """Requests that may be made for one home and teacher, retries included."""
    max_tokens: PositiveInt | None = None
    """Tokens, of prompts and completions, that may be spent for one home and teacher."""

    @model_validator(mode="after")
    def _check(self) -> TeacherConfig:
        if self.kind == "openai" and not self.model:
            raise ValueError("model is needed for kind = openai: the name under which the server knows the model")
        if self.kind == "engine" and self.path is None:
            raise ValueError("path is needed for kind = engine: the folder of the model")
        return self

    @property
    def is_model(self) -> bool:
        """Whether it writes what it is asked for, and plays; the graph's oracle answers questions alone."""
        return self.kind != "oracle"

    @property
    def holds_to_forms(self) -> bool:
        """Whether requests name the form of their replies."""
        return self.kind == "engine" if self.structured is None else self.structured

    @property
    def try_seconds(self) -> float:
        """How long a single try may take."""
        return self.timeout_seconds or (1_800.0 if self.kind == "engine" else 120.0)

    @property
    def name(self) -> str:
        """What completions are filed under: whatever changes what a teacher would say changes it."""
        from warehouse.digests import digest

        model = self.path.name if self.kind == "engine" and self.path else self.model or ""
        parts = [self.kind, model, *([digest(self.extra, 8)] if self.extra else [])]
        return ":".join(part for part in parts if part)
