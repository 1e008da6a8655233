"""ASGI middleware of the endpoint: check the key before reading a body, bound body sizes, and return errors in the caller's format."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY_BYTES = 8 * 2**20
"""Maximum body size per request: a million tokens as ids, or several million as text."""
_TYPES = {401: "authentication_error", 404: "not_found_error"}
_ANTHROPIC_TYPES = {**_TYPES, 413: "request_too_large"}


def error_body(scope: Scope, message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as the clients of the requested API read it: Anthropic's for its routes and version header, else OpenAI's."""
    if scope["path"].startswith("/v1/messages") or _header(scope, b"anthropic-version"):
        kind = "api_error" if status >= 500 else _ANTHROPIC_TYPES.get(status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(scope: Scope, message: str, status: int, param: str | None = None, code: str | None = None) -> JSONResponse:
    return JSONResponse(error_body(scope, message, status, param, code), status_code=status)


class Guard:
    """Rejects requests without the key (if one is set; as a bearer token or `x-api-key`) or with too large a body."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._expected = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._expected is not None and not secrets.compare_digest(_key(scope), self._expected):
            await _refuse("missing or wrong API key", 401, scope, receive, send)
            return
        body = None if _declared(scope) > MOST_BODY_BYTES else await _body(receive)
        if body is None:
            await _refuse(f"the body is larger than {MOST_BODY_BYTES // 2**20} MiB", 413, scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)


def _header(scope: Scope, name: bytes) -> bytes:
    headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
    return next((value for key, value in headers if key == name), b"")


def _key(scope: Scope) -> bytes:
    """The key that a request carries, empty without one."""
    kind, _, token = _header(scope, b"authorization").partition(b" ")
    return token if kind.lower() == b"bearer" else _header(scope, b"x-api-key")


def _declared(scope: Scope) -> int:
    text = _header(scope, b"content-length")
    return int(text) if text.isdigit() and len(text) < 20 else 0 if not text else MOST_BODY_BYTES + 1


async def _body(receive: Receive) -> Message | None:
    """The body as one message, or the client's disconnect; None if it is too large."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return message
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MOST_BODY_BYTES:
            return None
    return {"type": "http.request", "body": bytes(body), "more_body": False}


def _replayed(message: Message, receive: Receive) -> Receive:
    """Wrap `receive` to return `message` first."""
    waiting = iter([message])

    async def replay() -> Message:
        return next(waiting, None) or await receive()

    return replay


async def _refuse(message: str, status: int, scope: Scope, receive: Receive, send: Send) -> None:
    response = error_response(scope, message, status)
    response.headers["connection"] = "close"  # the rest of the body is not read
    await response(scope, receive, send)
