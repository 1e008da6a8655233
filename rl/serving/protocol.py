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


class _Strict(BaseModel):
    """Base of request parts; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Lenient(BaseModel):
    """Base of parts that clients echo, with ids, states and hints that are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class TextContent(Lenient):
    type: Literal["text", "input_text", "output_text"]
    text: str


class Function(_Strict):
    """Function of a call; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(_Strict):
    id: str
    type: Literal["function"] = "function"
    function: Function


class ChatMessage(Lenient):
    """One message."""

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
        """Canonical form, to compare what a client echoes with what it was given; many strip replies."""
        text = self.text.strip() if self.role == "assistant" else self.text
        calls = [[call.function.name, _parsed(call.function.arguments)] for call in self.calls]
        return json.dumps([self.role, text, calls, self.tool_call_id], sort_keys=True)


class JsonSchema(Lenient):
    """A named schema; `strict` and `description` are ignored, because the engine always holds to the schema."""

    definition: dict[str, Any] = Field(default_factory=lambda: {"type": "object"}, alias="schema")

    @field_validator("definition")
    @classmethod
    def _check_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise ValueError(f"this is not a JSON schema ({error.message[:200]})") from error
        return schema


class ResponseFormat(_Strict):
    """`text`, any JSON object, or JSON that satisfies a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema = JsonSchema()

    @property
    def form(self) -> str | None:
        """JSON schema of the reply as JSON text; None for free text."""
        return None if self.type == "text" else json.dumps(self.json_schema.definition)


class FlatFormat(JsonSchema):
    """A format with its schema next to its type, as in Responses and Messages."""

    type: Literal["text", "json_object", "json_schema"] = "text"


class FormatSettings(Lenient):
    format: FlatFormat = FlatFormat()

    @property
    def response_format(self) -> ResponseFormat:
        return ResponseFormat(type=self.format.type, json_schema=self.format)


class StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: bool = False


HINTS = {
    "cache_control", "client_metadata", "context_management", "include", "metadata", "parallel_tool_calls", "prompt_cache_key", "reasoning",
    "reasoning_effort", "safety_identifier", "service_tier", "thinking", "verbosity",
}  # fmt: skip
"""Keys that are ignored: they do not change what a reply may be, or ask for what a policy does as it was trained."""


class ApiRequest(_Strict):
    """Fields of all requests. A null is like an absent key. Keys with a single allowed value exist because clients send them by default."""

    model: str
    temperature: Temperature = 1.0
    top_p: float = Field(default=1.0, gt=0, le=1)
    stream: bool = False
    user: str | None = None
    store: Literal[False] = False

    @model_validator(mode="before")
    @classmethod
    def _drop_hints(cls, body: Any) -> Any:
        return {key: value for key, value in body.items() if value is not None and key not in HINTS} if isinstance(body, dict) else body


class _Request(ApiRequest):
    """Common fields of chat and completion requests."""

    seed: int | None = Field(default=None, ge=0, lt=2**63)
    n: Literal[1] = 1
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False
    """Also return `prompt_token_ids` and the choice's `token_ids`, as vLLM does."""


class ChatRequest(_Request):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] = "auto"
    stop: tuple[str, ...] = Field(default=(), max_length=16)
    """Texts that end the reply, which does not show them."""
    response_format: ResponseFormat = ResponseFormat()
    logprobs: bool = False
    top_logprobs: Literal[0] = 0

    @field_validator("stop", mode="before")
    @classmethod
    def _listed(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if not all(stop):
            raise ValueError("a stop text is empty")
        return stop

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        return [] if self.tool_choice == "none" else self.tools

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


def function_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """A tool in the form of chat requests."""
    function = {"name": name, "description": description or "", "parameters": parameters or {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


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
