"""Requests and messages of the endpoint: the part of OpenAI's protocol that a policy can honour.

A setting that could only be ignored is refused by its name: an agent that asks for a stop string or for four choices must not believe
that it got them.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from rl.engines.config import Temperature


class Refused(Exception):
    """The request cannot be honoured: a sentence for the client, the HTTP status that goes with it, and what of the request is meant."""

    def __init__(self, message: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


class ContextFull(Refused):
    """The context has no room for the reply that is asked for."""


class _Part(BaseModel):
    """A request or a part of one: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TextContent(_Part):
    """The one kind of content part that is taken."""

    type: Literal["text"]
    text: str


class Function(_Part):
    """What a call names: `arguments` is JSON as text."""

    name: str
    arguments: str = "{}"


class ToolCall(_Part):
    """A call in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class ChatMessage(BaseModel):
    """One message of a conversation. Keys beside these (`refusal`, `audio`, ...) are what clients send back, and say nothing here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextContent] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The content as text, empty where there is none."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def calls(self) -> list[ToolCall]:
        """The calls of an assistant's message."""
        return self.tool_calls or []

    @property
    def canonical(self) -> str:
        """The message in a canonical form, so that what a client sends back can be compared with what it was given."""
        calls = [[call.function.name, _parsed(call.function.arguments)] for call in self.calls]
        return json.dumps([self.role, self.text, calls, self.tool_call_id], sort_keys=True)


class StreamOptions(_Part):
    """What a stream ends with."""

    include_usage: bool = False
    include_obfuscation: bool = False


class _Request(_Part):
    """What both kinds of request share. Settings with one allowed value are those that clients send without meaning anything by them."""

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
    """Give `prompt_token_ids` and the choice's `token_ids` too, as vLLM does."""


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
        """The tools that the policy is shown."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def max_reply_tokens(self) -> int | None:
        """Tokens of the reply at most; None is as many as the context takes."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(_Request):
    """`POST /v1/completions`; a prompt is one text or one list of token ids."""

    prompt: str | list[int]
    max_tokens: PositiveInt | None = 16
    logprobs: Literal[0, 1, None] = None
    """With 0 or 1, the log-probability of each sampled token; there are no alternatives."""

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
