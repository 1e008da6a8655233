"""The endpoint without an engine: what it refuses, and the trajectories that it records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import ValidationError

from rl.engines.base import EngineFault
from rl.renderers.chat import ChatDialect
from rl.serving.chat_renderer import ChatRenderer
from rl.serving.endpoint import Endpoint
from rl.serving.guard import MOST_BODY_BYTES, Guard
from rl.serving.recorder import Recorder
from rl.serving.server import ServingConfig, create_app
from tests.rl.serving.stated import TEMPLATE, Stated, context_of
from tests.rl.serving.test_chat_renderer import SEARCH
from warehouse.records import Outcome, StopReason

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Amber Stone"}}\n</tool_call>'


@pytest.fixture
def engine() -> Stated:
    return Stated()


ASKED = {"model": "t1-rl", "prompt": [1, 2], "max_tokens": 3}
CHAT = {"model": "t1-rl", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def endpoint(engine: Stated) -> Endpoint:
    return Endpoint(engine, Recorder("t1-rl", "rl", "run"), TEMPLATE.plain, ChatRenderer(ChatDialect(TEMPLATE)), "", "t1-rl", 2000)


@pytest.fixture
def client(endpoint: Endpoint) -> TestClient:
    return TestClient(create_app(endpoint, None))


def ask(client: TestClient, messages: list[dict[str, Any]], headers: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json={"model": "t1-rl", "messages": messages, **more}, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


def test_an_agents_requests_become_one_trajectory_of_the_ids_as_sampled(client: TestClient, engine: Stated, endpoint: Endpoint) -> None:
    engine.texts = [CALL, "Blue River."]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Where is Amber Stone?"}]
    called = ask(client, messages, tools=[SEARCH])
    assert called["tool_calls"][0]["function"] == {"name": "search", "arguments": '{"query": "Amber Stone"}'}
    result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "In Blue River.<|im_end|>"}
    answer = ask(client, [*messages, called, result], tools=[SEARCH])
    assert answer["content"] == "Blue River."
    (trajectory,) = endpoint.recorder.take()
    assert [turn.tool for turn in trajectory.turns] == ["search", "answer"]
    assert (trajectory.stop_reason, trajectory.outcome) == (StopReason.ANSWERED, None)
    assert engine.contexts[1] == context_of(trajectory)[: len(engine.contexts[1])]
    assert engine.contexts[1][: len(engine.contexts[0])] == engine.contexts[0]
    assert trajectory.turns[0].action == f"{CALL}<|im_end|>"
    assert {turn.policy_version for turn in trajectory.turns} == {3}
    ends = TEMPLATE.special["<|im_end|>"]
    assert trajectory.turns[0].observation_ids.count(ends) == 1, "the result's own spelling of it is letters"
    assert endpoint.recorder.take() == []


def test_a_past_that_was_changed_begins_another_segment_and_says_so(client: TestClient, engine: Stated, endpoint: Endpoint) -> None:
    engine.texts = ["One.", "Two.", "Three."]
    name = {"X-Trajectory-Id": "agent-7", "X-Task-Key": "k"}
    first = [{"role": "user", "content": "Count."}]
    reply = ask(client, first, name)
    ask(client, [*first, reply, {"role": "user", "content": "On."}], name)
    ask(client, [{"role": "user", "content": "Summary: you counted to two."}], name)
    kept, rewritten = endpoint.recorder.take("agent-7")
    assert (kept.id, rewritten.id) == ("agent-7", "agent-7.1")
    assert (len(kept.turns), len(rewritten.turns)) == (2, 1)
    assert rewritten.provenance == {"endpoint": "chat", "conversation": "agent-7", "segment": "does_not_extend"}
    assert {kept.task_key, rewritten.task_key} == {"k"}


def test_completions_extend_by_ids_and_by_text(client: TestClient, engine: Stated, endpoint: Endpoint) -> None:
    engine.texts = ["A.", "B.", "C."]

    def complete(prompt: str | list[int], user: str) -> dict[str, Any]:
        asked = {"model": "t1-rl", "prompt": prompt, "user": user, "return_token_ids": True}
        return client.post("/v1/completions", json=asked).json()["choices"][0]

    ids = [20, 21, *complete([20, 21], "i")["token_ids"]]
    complete([*ids, 30], "i")
    complete([20, 99], "i")
    extended, other = endpoint.recorder.take("i")
    assert extended.turns[0].observation_ids == (30,)
    assert list(context_of(extended)[: len(ids)]) == ids
    assert (len(extended.turns), len(other.turns)) == (2, 1)
    engine.texts = ["D.", "E."]
    text = "Hi<|im_end|>"
    complete(f"{text}{complete(text, 't')['text']} more", "t")
    (trajectory,) = endpoint.recorder.take("t")
    assert TEMPLATE.plain.control.isdisjoint(trajectory.prompt_ids)
    assert trajectory.turns[0].observation == " more"


def test_a_completion_continues_only_a_prompt_with_its_end_token(client: TestClient, engine: Stated, endpoint: Endpoint) -> None:
    engine.texts, engine.end = ["", "", "A.", "B."], "<|end_of_text|>"
    asked = {"model": "t1-rl", "user": "e"}
    for prompt in ("Hi", "Hi", "Ho", "Ho A. more"):
        client.post("/v1/completions", json={**asked, "prompt": prompt})
    assert engine.contexts == [TEMPLATE.plain.ids(prompt) for prompt in ("Hi", "Hi", "Ho", "Ho A. more")]
    assert [len(trajectory.turns) for trajectory in endpoint.recorder.take("e")] == [1, 1, 1, 1]


def test_an_engine_that_fails_makes_the_trajectory_invalid(client: TestClient, engine: Stated, endpoint: Endpoint) -> None:
    engine.texts = [EngineFault("no engine is left")]
    assert error_of(client.post("/v1/chat/completions", json=CHAT), 503)["message"] == "the engine failed: no engine is left"
    (trajectory,) = endpoint.recorder.take()
    assert (trajectory.outcome, trajectory.stop_reason, trajectory.error) == (Outcome.INVALID, StopReason.FAULT, "no engine is left")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"stop": ["a"] * 17}, "stop is invalid"),
        ({"n": 4}, "n is invalid"),
        ({"max_tokens": 5000}, "context of 2000"),
        ({"user": "../../x y"}, "user must be a letter or digit and up to 199"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "is invalid"),
    ],
)
def test_unsupported_settings_are_refused_by_name(client: TestClient, endpoint: Endpoint, setting: dict[str, Any], said: str) -> None:
    assert said in error_of(client.post("/v1/chat/completions", json=CHAT | setting), 400)["message"]
    assert endpoint.recorder.take() == []


@pytest.mark.parametrize("prompt", [[5, 10**6], [-1], []])
def test_ids_that_the_policy_does_not_have_never_reach_the_engine(client: TestClient, engine: Stated, prompt: list[int]) -> None:
    error_of(client.post("/v1/completions", json=ASKED | {"prompt": prompt}), 400)
    assert engine.contexts == []


def test_streams_carry_the_same_answer_and_the_usage(client: TestClient, engine: Stated) -> None:
    engine.texts = [CALL]
    streamed = {"tools": [SEARCH], "stream": True, "stream_options": {"include_usage": True}}
    response = client.post("/v1/chat/completions", json=CHAT | streamed)
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "search"
    assert chunks[1]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[2]["usage"]["completion_tokens"] > 0


def test_a_key_is_required_where_other_machines_can_connect() -> None:
    with pytest.raises(ValidationError, match=r"serving\.api_key"):
        ServingConfig(host="0.0.0.0")


def test_no_two_conversations_share_the_id_of_a_trajectory() -> None:
    """A client may call its conversation as the second segment of another one is called; the lake would keep one of the two."""
    recorder = Recorder("t1-rl", "rl", "run")
    ids = [recorder.begin(name, None, [1], 0, "chat").id for name in ("a", "a", "a.1", "a.1", "a", "run-000000", None, None)]
    assert len(set(ids)) == len(ids), ids
    assert ids[:2] == ["a", "a.1"]


KEY = {"Authorization": "Bearer secret"}


@pytest.fixture
def app(engine: Stated) -> FastAPI:
    return create_app(Endpoint(engine, Recorder("t1-rl", "rl", "run"), TEMPLATE.plain, None, "there is no chat", "t1-rl", 2000), "secret")


@pytest.fixture
def guarded(app: FastAPI) -> TestClient:
    return TestClient(app, headers=KEY, raise_server_exceptions=False)


def error_of(answer: Any, status: int) -> dict[str, Any]:
    """The error in OpenAI's form, and nothing else."""
    assert answer.status_code == status
    (error,) = (answer.json()["error"],)
    assert list(answer.json()) == ["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["message"] and error["type"]
    return dict(error)


@pytest.mark.parametrize("header", [None, b"Bearer", b"Bearer secret2", b"Bearer \xc3\xa9"])
@pytest.mark.parametrize("path", ["/v1/completions", "/nothing"])
def test_the_body_is_not_read_without_the_key(app: FastAPI, header: bytes | None, path: str) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        raise AssertionError("the body was asked for")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")] + ([] if header is None else [(b"authorization", header)])
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": path}
    scope |= {"raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers, "guarded": None, "server": None}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 401
    assert json.loads(sent[1]["body"])["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_beyond_the_bound_is_refused_and_not_read_to_its_end(guarded: TestClient, engine: Stated, declared: bool) -> None:
    read = 0

    def pieces() -> Iterator[bytes]:
        nonlocal read
        for _ in range(64):
            read += 2**20
            yield b" " * 2**20

    content = b" " * (MOST_BODY_BYTES + 1) if declared else pieces()
    assert "8 MiB" in error_of(guarded.post("/v1/completions", content=content), 413)["message"]
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
def test_errors_have_openais_form(guarded: TestClient, method: str, path: str, content: bytes, status: int, said: str) -> None:
    error = error_of(guarded.request(method, path, content=content, headers={"Content-Type": "application/json"}), status)
    assert said in error["message"]


def test_internal_errors_have_openais_form_and_reveal_nothing(guarded: TestClient, engine: Stated) -> None:
    engine.texts = []  # and the engine falls over
    error = error_of(guarded.post("/v1/completions", json=ASKED), 500)
    assert (error["type"], error["message"]) == ("server_error", "the endpoint failed: IndexError")


@pytest.mark.parametrize("name", ["../../etc/passwd", ".", "-rf", "a b", "ä", "x" * 201])
def test_invalid_trajectory_names_are_refused(guarded: TestClient, engine: Stated, name: str) -> None:
    engine.texts = ["yes"]
    headers = {"X-Trajectory-Id": name.encode()}
    assert error_of(guarded.post("/v1/completions", json=ASKED, headers=headers), 400)["param"] == "X-Trajectory-Id"
    assert error_of(guarded.post("/v1/completions", json={**ASKED, "user": name}), 400)["param"] == "user"
    assert engine.contexts == []
