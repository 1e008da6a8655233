"""Completions from an OpenAI-compatible server.

The client's retries are disabled, since the teacher handles retries and limits. The reply body is validated here, since servers differ.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import openai
from openai.types.shared_params import ResponseFormatJSONSchema
from pydantic import BaseModel, Field, ValidationError

from rl.renderers.base import ActionTurn
from rl.renderers.tool_parsers import parse_json_in_tags
from synth.teachers.config import TeacherConfig
from synth.teachers.source import SourceError, largest_cost
from synth.teachers.teacher import Ending, Fault, completion_id
from warehouse.errors import RequestError
from warehouse.records import ANSWER, Completion, Request
from warehouse.settings import first_error

SHOWN_CHARACTERS = 2_000
"""Maximum characters of an unreadable reply stored in a failure."""
_OUT_OF_MONEY = "insufficient_quota"


class _Function(BaseModel):
    name: str
    arguments: str | None = None


class _Call(BaseModel):
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Body(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class OpenAiSource:
    def __init__(self, config: TeacherConfig) -> None:
        """Raise RequestError for OpenAI's own server without a key; other servers may need none."""
        key = os.environ.get(config.api_key_variable)
        if key is None and config.base_url is None:
            raise RequestError(f"the teacher has no API key: set the environment variable {config.api_key_variable} or teacher.base_url.")
        self._config = config
        self._client = openai.AsyncOpenAI(base_url=config.base_url, api_key=key or "none", max_retries=0, timeout=config.try_seconds)
        self.name: str = config.name

    async def generate(self, request: Request) -> Completion:
        """Send one request. Raises SourceError and RequestError."""
        clock = time.perf_counter()
        body = _read(await self._send(request))
        usage = body.usage or _largest_usage(request)
        choice = body.choices[0]
        return Completion(
            id=completion_id(self.name, request),
            teacher=self.name,
            request=request.content,
            text=_with_calls(choice.message),
            ending=Ending.LENGTH if choice.finish_reason == "length" else Ending.STOP,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            seconds=time.perf_counter() - clock,
        )

    async def close(self) -> None:
        await self._client.close()

    async def _send(self, request: Request) -> str:
        """Body of the server's reply. Raises SourceError and RequestError."""
        try:
            response = await self._client.chat.completions.with_raw_response.create(
                model=self._config.model or "",
                messages=messages_of(request),
                tools=openai.omit if request.tools is None else json.loads(request.tools),
                temperature=request.temperature,
                seed=request.seed,
                stop=list(request.stop) or openai.omit,
                response_format=openai.omit if request.form is None else _response_format(request.form),
                extra_body={self._config.token_limit_parameter: request.max_tokens, **self._config.extra},
            )
        except openai.APITimeoutError as error:
            raise SourceError(Fault.TIMEOUT, "the server did not reply in time") from error
        except openai.APIConnectionError as error:
            reached = type(error.__cause__).__name__ != "ConnectError"  # from httpx or httpx2, depending on the client version
            reason = f"no connection to {self._client.base_url}: {error.__cause__ or error}"
            raise SourceError(Fault.CONNECTION, reason, reached=reached) from error
        except openai.APIStatusError as error:
            raise self._refusal(error) from error
        return response.http_response.text

    def _refusal(self, error: openai.APIStatusError) -> SourceError | RequestError:
        status, text = error.status_code, error.response.text[:SHOWN_CHARACTERS]
        if status in (401, 403, 404):
            mend = f"check teacher.base_url, teacher.model and the key in {self._config.api_key_variable}"
            return RequestError(f"the server at {self._client.base_url} returned {status} for {self._config.model!r}; {mend}.")
        if status == 429 and error.code != _OUT_OF_MONEY:
            return SourceError(Fault.RATE_LIMITED, "too many requests (429)", text, _retry_after(error.response.headers.get("retry-after")))
        if status in (408, 409) or status >= 500:
            wanted = _retry_after(error.response.headers.get("retry-after"))
            return SourceError(Fault.SERVER_ERROR, f"the server failed ({status})", text, wanted)
        return SourceError(Fault.REFUSED, f"the server refuses the request ({status})", text)


def messages_of(request: Request) -> Any:
    """Conversation in the server's format; calls and results have ids."""
    messages: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for number, message in enumerate(request.messages):
        turn = parse_json_in_tags(message.content) if message.role == "assistant" and request.tools else None
        calls = [call for call in turn.calls if call.tool != ANSWER] if isinstance(turn, ActionTurn) else []
        if calls:
            open_calls = [f"call_{number}_{place}" for place in range(len(calls))]
            listed = [
                {"id": key, "type": "function", "function": {"name": call.tool, "arguments": call.arguments}}
                for key, call in zip(open_calls, calls, strict=True)
            ]
            messages.append({"role": "assistant", "content": message.content.split("<tool_call>")[0].strip() or None, "tool_calls": listed})
        elif message.role == "tool" and open_calls:
            messages.append({"role": "tool", "tool_call_id": open_calls.pop(0), "content": message.content})
        else:
            messages.append({"role": "user" if message.role == "tool" else message.role, "content": message.content})
    return messages


def _with_calls(message: _Message) -> str:
    texts = [message.content or ""]
    for call in message.tool_calls or ():
        arguments = call.function.arguments or "{}"
        texts.append(f'<tool_call>\n{{"name": {json.dumps(call.function.name)}, "arguments": {arguments}}}\n</tool_call>')
    return "\n".join(filter(None, texts))


def _response_format(form: str) -> ResponseFormatJSONSchema:
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": json.loads(form)}}


def _largest_usage(request: Request) -> _Usage:
    return _Usage(prompt_tokens=largest_cost(request) - request.max_tokens, completion_tokens=request.max_tokens)


def _read(text: str) -> _Body:
    try:
        return _Body.model_validate_json(text)
    except ValidationError as error:
        raise SourceError(Fault.MALFORMED, f"the reply cannot be read: {first_error(error, 'body')}", text[:SHOWN_CHARACTERS]) from error


def _retry_after(value: str | None) -> float | None:
    """Seconds of a `Retry-After` header; the date format is ignored."""
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None
