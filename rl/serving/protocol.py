"""Requests and messages of the endpoint: the part of OpenAI's protocol that a policy supports.

Unsupported settings are refused by name instead of ignored, so that an agent that asks for stop strings or four choices gets an error.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from rl.engines.config import Temperature


class Refused(Exception):
    """A request that cannot be served, with HTTP status and parameter name."""

    def __init__(self, message: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


class ContextFull(Refused):
    """The context has no room for the requested reply."""


class _Part(BaseModel):
    """Base of request parts; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TextContent(_Part):
    type: Literal["text"]
    text: str


class Function(_Part):
    """Function of a call; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(_Part):
    id: str
    type: Literal["function"] = "function"
    function: Function


class ChatMessage(BaseModel):
    """One message. Other keys (`refusal`, `audio`, …) are ignored, because clients echo them."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextContent] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def calls(self) -> list[ToolCall]:
        return self.tool_calls or []

    @property
    def canonical(self) -> str:
        """Canonical form, to compare what a client echoes with what it was given."""
        calls = [[call.function.name, _parsed(call.function.arguments)] for call in self.calls]
        return json.dumps([self.role, self.text, calls, self.tool_call_id], sort_keys=True)


class StreamOptions(_Part):
    include_usage: bool = False
    include_obfuscation: bool = False


class _Request(_Part):
    """Common request fields. Settings with a single allowed value exist because clients send them by default."""

    model: str
    temperature: Temperature = 1.0
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    n: Literal[1, None] = 1
    presence_penalty: Literal[0, None] = 0
    frequency_penalty: Literal[0, None] = 0
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False, None] = None
    return_token_ids: bool = False
    """Also return `prompt_token_ids` and the choice's `token_ids`, as vLLM does."""


class ChatRequest(_Request):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none", None] = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = False
    top_logprobs: Literal[0, None] = None

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def max_reply_tokens(self) -> int | None:
        """Token limit of the reply; None: as many as the context allows."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(_Request):
    """`POST /v1/completions`; the prompt is one text or one list of token ids."""

    prompt: str | list[int]
    max_tokens: PositiveInt | None = 16
    logprobs: Literal[0, 1, None] = None
    """With 0 or 1, return each sampled token's log-probability; alternatives are not available."""

    @model_validator(mode="after")
    def _check_prompt(self) -> CompletionRequest:
        if not self.prompt:
            raise ValueError("prompt is empty")
        return self


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
