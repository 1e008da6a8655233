"""Messages, requests and replies of the endpoint, in the form of OpenAI's chat completions; other APIs are converted to and from it.

Settings that would change the reply and are not supported are refused by name, so that an agent that asks for stop strings or four choices
gets an error. Hints such as `prompt_cache_key` are accepted and ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

from rl.engines.base import Generation
from rl.engines.config import Temperature


class Refused(Exception):
    """A request that cannot be served, with HTTP status, parameter name and OpenAI's code."""

    code: str | None = None

    def __init__(self, message: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


class ContextFull(Refused):
    """The context has no room for the requested reply."""

    code = "context_length_exceeded"


class RequestPart(BaseModel):
    """Base of request parts; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)


class TextContent(RequestPart):
    type: Literal["text"]
    text: str


class Function(RequestPart):
    """Function of a call; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(RequestPart):
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


class JsonSchema(BaseModel):
    """A named schema; `strict` and `description` are ignored, because the engine always holds to the schema."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    definition: dict[str, Any] = Field(default_factory=lambda: {"type": "object"}, alias="schema")

    @field_validator("definition")
    @classmethod
    def _check_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise ValueError(f"this is not a JSON schema ({error.message[:200]})") from error
        return schema


class ResponseFormat(RequestPart):
    """`text`, any JSON object, or JSON that satisfies a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @property
    def form(self) -> str | None:
        """JSON schema of the reply as JSON text; None for free text."""
        if self.type == "text":
            return None
        return json.dumps((self.json_schema or JsonSchema()).definition)

    @model_validator(mode="after")
    def _check_given(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema and type json_schema need each other")
        return self


class StreamOptions(RequestPart):
    include_usage: bool = False
    include_obfuscation: bool = False


class _Request(RequestPart):
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
    response_format: ResponseFormat = ResponseFormat()
    logprobs: bool | None = False
    top_logprobs: Literal[0, None] = None
    parallel_tool_calls: Any = None
    prompt_cache_key: Any = None
    reasoning_effort: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    verbosity: Any = None

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


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of a reply in progress: of its reasoning, or of its content."""

    kind: Literal["thought", "text"]
    text: str


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A finished reply; `tokens` is the text of each token, if log-probabilities were requested."""

    id: str
    model: str
    message: ChatMessage
    thought: str | None
    prompt_ids: tuple[int, ...]
    generation: Generation
    tokens: tuple[str, ...] = ()

    @property
    def finish(self) -> str:
        return "tool_calls" if self.message.calls else self.generation.stop_reason.value
