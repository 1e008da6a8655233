"""Who asks the endpoint, how much is read of them, and what they are told: before an engine has anything to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from rl.serving.endpoint import Endpoint, Recorder
from rl.serving.guard import MOST_BODY_BYTES, Guard
from rl.serving.server import create_app
from tests.rl.serving.test_recorder import TEMPLATE, Stated

KEY = {"Authorization": "Bearer secret"}
ASKED = {"model": "t1-rl", "prompt": [1, 2], "max_tokens": 3}


@pytest.fixture
def engine() -> Stated:
    return Stated()


@pytest.fixture
def app(engine: Stated) -> FastAPI:
    return create_app(Endpoint(engine, Recorder("t1-rl", "rl", "run"), TEMPLATE.plain, None, "there is no chat", "t1-rl", 2000), "secret")


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app, headers=KEY, raise_server_exceptions=False)


def error_of(answer: Any, status: int) -> dict[str, Any]:
    """The error in OpenAI's form, and nothing beside it."""
    assert answer.status_code == status
    (error,) = (answer.json()["error"],)
    assert list(answer.json()) == ["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["message"] and error["type"]
    return dict(error)


@pytest.mark.parametrize("header", [None, b"Bearer", b"Bearer secret2", b"Bearer \xc3\xa9"])
@pytest.mark.parametrize("path", ["/v1/completions", "/nothing"])
def test_without_the_key_not_a_byte_of_the_body_is_read(app: FastAPI, header: bytes | None, path: str) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        raise AssertionError("the body was asked for")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")] + ([] if header is None else [(b"authorization", header)])
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": path}
    scope |= {"raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers, "client": None, "server": None}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 401
    assert json.loads(sent[1]["body"])["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_beyond_the_bound_is_refused_and_not_read_to_its_end(client: TestClient, engine: Stated, declared: bool) -> None:
    read = 0

    def pieces() -> Iterator[bytes]:
        nonlocal read
        for _ in range(64):
            read += 2**20
            yield b" " * 2**20

    content = b" " * (MOST_BODY_BYTES + 1) if declared else pieces()
    assert "8 MiB" in error_of(client.post("/v1/completions", content=content), 413)["message"]
    assert engine.contexts == []


async def test_a_body_in_pieces_of_one_byte_is_kept_as_one() -> None:
    """Each piece is an object of a hundred bytes and more; eight megabytes of them took gigabytes."""
    pieces = iter(
        [{"type": "http.request", "body": b"x", "more_body": True}] * 5 + [{"type": "http.request", "body": b"", "more_body": False}]
    )
    reached: list[Any] = []

    async def receive() -> Any:
        return next(pieces)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(await receive())

    await Guard(app, None)({"type": "http", "headers": []}, receive, receive)
    assert reached == [{"type": "http.request", "body": b"xxxxx", "more_body": False}]


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "said"),
    [
        ("GET", "/v1/nothing", b"", 404, "Not Found"),
        ("POST", "/v1/completions", b"{", 400, "JSON"),
        ("POST", "/v1/completions", b"[" * 100_000, 400, ""),
        ("POST", "/v1/completions", b'{"model": "t1-rl", "prompt": "a", "metadata": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001, 400, ""),
        ("POST", "/v1/completions", b'{"model": "other", "prompt": "a"}', 404, "there is no model"),
        ("POST", "/v1/chat/completions", b'{"model": "t1-rl", "messages": [{"role": "user", "content": "a"}]}', 400, "no chat"),
    ],
)
def test_every_error_has_the_form_of_openai(client: TestClient, method: str, path: str, content: bytes, status: int, said: str) -> None:
    error = error_of(client.request(method, path, content=content, headers={"Content-Type": "application/json"}), status)
    assert said in error["message"]


def test_an_endpoint_that_fails_says_so_in_the_form_of_openai_and_no_more(client: TestClient, engine: Stated) -> None:
    engine.texts = []  # and the engine falls over
    error = error_of(client.post("/v1/completions", json=ASKED), 500)
    assert (error["type"], error["message"]) == ("server_error", "the endpoint failed: IndexError")


@pytest.mark.parametrize("name", ["../../etc/passwd", ".", "-rf", "a b", "ä", "x" * 201])
def test_a_trajectory_is_named_by_a_name(client: TestClient, engine: Stated, name: str) -> None:
    engine.texts = ["yes"]
    headers = {"X-Trajectory-Id": name.encode()}
    assert error_of(client.post("/v1/completions", json=ASKED, headers=headers), 400)["param"] == "X-Trajectory-Id"
    assert error_of(client.post("/v1/completions", json={**ASKED, "user": name}), 400)["param"] == "user"
    assert engine.contexts == []
