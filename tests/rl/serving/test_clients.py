"""The official clients of OpenAI and Anthropic against the endpoint over HTTP: conversations, streams, tools, schemas and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

from rl.engines.base import EngineFault
from rl.renderers.chat import ChatDialect
from rl.serving.chat_renderer import ChatRenderer
from rl.serving.endpoint import Endpoint
from rl.serving.recorder import Recorder
from rl.serving.server import create_app
from tests.rl.http_server import served
from tests.rl.serving.stated import TEMPLATE, Stated, context_of
from tests.rl.serving.test_chat_renderer import PARAMETERS, SEARCH

KEY = "secret"
CALL = '<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{"name": "search", "arguments": {"query": "Amber Stone"}}\n</tool_call>'
ANSWER = "<think>\nFound.\n</think>\n\nIn Blue River, `é` 🙂."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture(scope="module")
def engine() -> Stated:
    return Stated()


@pytest.fixture(scope="module")
def endpoint(engine: Stated) -> Endpoint:
    return Endpoint(engine, Recorder("p", "serve", "run"), TEMPLATE.plain, ChatRenderer(ChatDialect(TEMPLATE)), "", "p", 1000)


@pytest.fixture(scope="module")
def address(endpoint: Endpoint) -> Iterator[str]:
    with served(create_app(endpoint, KEY)) as url:
        yield url


@pytest.fixture
def oai(address: str, engine: Stated, endpoint: Endpoint) -> openai.OpenAI:
    reset(engine, endpoint)
    return openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)


@pytest.fixture
def ant(address: str, engine: Stated, endpoint: Endpoint) -> anthropic.Anthropic:
    reset(engine, endpoint)
    return anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0)


def reset(engine: Stated, endpoint: Endpoint) -> None:
    endpoint.recorder.take()
    engine.__init__()  # type: ignore[misc]


Said = tuple[str, str, list[tuple[str, str, Any]]]
"""Reasoning, text and calls of a reply: id, name and arguments."""


class Chat:
    """An agent that speaks chat completions."""

    def __init__(self, client: openai.OpenAI, stream: bool) -> None:
        self.client, self.stream, self.messages, self.pieces = client, stream, list[Any](), 0
        self.more: dict[str, Any] = {}

    def ask(self, text: str) -> Said:
        return self._send({"role": "user", "content": text})

    def answer(self, call: str, text: str) -> Said:
        return self._send({"role": "tool", "tool_call_id": call, "content": text})

    def _send(self, message: Any) -> Said:
        self.messages.append(message)
        asked = {"model": "p", "messages": self.messages, "tools": [SEARCH], **self.more}
        if not self.stream:
            choice = self.client.chat.completions.create(**asked).choices[0]
            reply = choice.message
        else:
            with self.client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
                self.pieces = sum(event.type == "content.delta" for event in stream)
                done = stream.get_final_completion()
            assert done.usage is not None and done.usage.completion_tokens > 0
            choice = done.choices[0]
            reply = choice.message
        assert choice.finish_reason == ("tool_calls" if reply.tool_calls else "stop")
        said = reply.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
        for call in said.get("tool_calls", ()):
            call["function"].pop("parsed_arguments", None), call.pop("index", None)
        self.messages.append(said)
        calls = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in reply.tool_calls or ()]
        return (reply.model_extra or {}).get("reasoning_content", ""), reply.content or "", calls


class Responses(Chat):
    """An agent that speaks the Responses API and sends all items back."""

    def answer(self, call: str, text: str) -> Said:
        return self._send({"type": "function_call_output", "call_id": call, "output": text})

    def _send(self, message: Any) -> Said:
        self.messages.append(message)
        function = {"type": "function", "name": "search", "description": "Search.", "parameters": PARAMETERS, "strict": False}
        asked = {"model": "p", "input": self.messages, "tools": [function], "store": False, **self.more}
        if not self.stream:
            response = self.client.responses.create(**asked)
        else:
            with self.client.responses.stream(**asked) as stream:
                self.pieces = sum(event.type == "response.output_text.delta" for event in stream)
                response = stream.get_final_response()
        assert response.status == "completed" and response.usage is not None and response.usage.output_tokens > 0
        self.messages += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        thoughts = [part.text for item in response.output if item.type == "reasoning" for part in item.content or ()]
        calls = [(item.call_id, item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]
        return "".join(thoughts), response.output_text, calls


class Messages(Chat):
    """An agent that speaks Anthropic's Messages API, with the hints that coding agents send."""

    client: Any

    def answer(self, call: str, text: str) -> Said:
        return self._send({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]})

    def _send(self, message: Any) -> Said:
        self.messages.append(message)
        tool = {"name": "search", "description": "Search.", "input_schema": PARAMETERS, "cache_control": {"type": "ephemeral"}}
        asked = {"model": "p", "max_tokens": 20_000, "messages": self.messages, "tools": [tool], "metadata": {"user_id": "u"}, **self.more}
        if not self.stream:
            reply = self.client.messages.create(**asked, extra_body={"context_management": {"edits": []}})
        else:
            with self.client.messages.stream(**asked) as stream:
                self.pieces = sum(event.type == "text" for event in stream)
                reply = stream.get_final_message()
        assert reply.usage.output_tokens > 0 and reply.usage.input_tokens > 0
        assert reply.stop_reason == ("tool_use" if any(block.type == "tool_use" for block in reply.content) else "end_turn")
        self.messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]})
        thoughts = [block.thinking for block in reply.content if block.type == "thinking"]
        texts = [block.text for block in reply.content if block.type == "text"]
        return "".join(thoughts), "".join(texts), [(one.id, one.name, one.input) for one in reply.content if one.type == "tool_use"]


AGENTS = [Chat, Responses, Messages]


def agent_of(kind: type[Chat], oai: openai.OpenAI, ant: anthropic.Anthropic, stream: bool = False) -> Any:
    return kind(ant if kind is Messages else oai, stream)  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", AGENTS)
def test_a_conversation_of_any_style_is_one_context_of_sampled_tokens(
    kind: type[Chat], stream: bool, oai: openai.OpenAI, ant: anthropic.Anthropic, engine: Stated, endpoint: Endpoint
) -> None:
    engine.texts = [CALL, ANSWER, "Yes."]
    agent = agent_of(kind, oai, ant, stream)
    thought, text, [(call, name, arguments)] = agent.ask("Where is Amber Stone?")
    assert (thought, text, name, arguments) == ("Hm.", "I look.", "search", {"query": "Amber Stone"})
    assert agent.answer(call, "It lies in Blue River.") == ("Found.", "In Blue River, `é` 🙂.", [])
    assert agent.pieces > 5 or not stream
    assert agent.ask("Really?") == ("", "Yes.", [])
    (trajectory,) = endpoint.recorder.take()
    assert [turn.tool for turn in trajectory.turns] == ["search", "answer", "answer"]
    assert [turn.action for turn in trajectory.turns] == [f"{text}<|im_end|>" for text in (CALL, ANSWER, "Yes.")]
    for context in engine.contexts:
        assert context_of(trajectory)[: len(context)] == context


@pytest.mark.parametrize("kind", AGENTS)
def test_a_schema_reaches_the_engine_and_excludes_tools(
    kind: type[Chat], oai: openai.OpenAI, ant: anthropic.Anthropic, engine: Stated, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"name": "place", "schema": SCHEMA, "strict": True}
    more: dict[type[Chat], dict[str, Any]] = {
        Chat: {"response_format": {"type": "json_schema", "json_schema": named}},
        Responses: {"text": {"format": {"type": "json_schema", **named}}},
        Messages: {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    }
    engine.texts = ['{"city": "Blue River"}'] * 2
    agent = agent_of(kind, oai, ant)
    agent.more = {**more[kind], "tool_choice": {"type": "none"} if kind is Messages else "none"}
    assert json.loads(agent.ask("Where?")[1]) == {"city": "Blue River"}
    assert [json.loads(sampling.form or "") for sampling in engine.samplings] == [SCHEMA]
    agent.more = more[kind]
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="tool_choice none"):
        agent.ask("Where?")
    for wrong in ({"type": "objekt"}, {"type": "object", "properties": 3}):
        agent.more = json.loads(json.dumps(more[kind]).replace(json.dumps(SCHEMA), json.dumps(wrong)))
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="not a JSON schema"):
            agent.ask("Where?")
    monkeypatch.setattr(endpoint, "_no_form", "these engines do not")
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="these engines do not"):
        agent_with(agent, more[kind]).ask("Where?")
    assert len(engine.samplings) == 1


def agent_with(agent: Any, more: dict[str, Any]) -> Any:
    agent.more = more
    return agent


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"model": "q"}, openai.NotFoundError, "this endpoint serves 'p'"),
        ({"stop": [""]}, openai.BadRequestError, "a stop text is empty"),
        ({"tool_choice": "required"}, openai.BadRequestError, "cannot be forced to call a tool"),
        ({"max_tokens": 5000}, openai.BadRequestError, "context of 1000"),
        ({"previous_response_id": "r"}, openai.BadRequestError, "previous_response_id is not supported"),
        ({"store": True}, openai.BadRequestError, "store is invalid"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, openai.BadRequestError, "item_reference"),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "tools.0"),
        ({"stop_sequences": ["x"]}, anthropic.BadRequestError, "stop_sequences is invalid"),
        ({"top_k": 3}, anthropic.BadRequestError, "top_k is not supported"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, anthropic.BadRequestError, "tools.0"),
        ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError, "tool_choice"),
        ({"model": "q"}, anthropic.NotFoundError, "this endpoint serves 'p'"),
    ],
)
def test_refusals_are_the_clients_own_errors(
    more: dict[str, Any], error: type[Exception], said: str, oai: openai.OpenAI, ant: anthropic.Anthropic, engine: Stated
) -> None:
    asked: dict[str, Any] = {"model": "p", "extra_body": more}
    messages: Any = [{"role": "user", "content": "a"}]
    with pytest.raises(error, match=said) as raised:
        if error.__module__.startswith("anthropic"):
            ant.messages.create(messages=messages, max_tokens=5, **asked)
        elif more.keys() & {"previous_response_id", "store", "input", "tools"}:
            oai.responses.create(input="a", **asked)
        else:
            oai.chat.completions.create(messages=messages, **asked)
    body: Any = raised.value.body  # type: ignore[attr-defined]
    assert body.get("error", body)["type"] in ("invalid_request_error", "not_found_error")
    assert engine.contexts == []


@pytest.mark.parametrize("kind", AGENTS)
def test_a_full_context_a_wrong_key_and_a_dead_engine_are_told_apart(
    kind: type[Chat], oai: openai.OpenAI, ant: anthropic.Anthropic, engine: Stated, endpoint: Endpoint
) -> None:
    agent = agent_of(kind, oai, ant)
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="exceed the policy's context of 1000") as full:
        agent.ask("word " * 2000)
    assert kind is Messages or full.value.code == "context_length_exceeded"
    agent = agent_of(kind, oai.with_options(api_key="wrong"), ant.with_options(api_key="wrong"))
    with pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError), match="missing or wrong API key"):
        agent.ask("a")
    for stream in (False, True):
        engine.texts = [EngineFault("no engine is left")]
        with pytest.raises((openai.InternalServerError, anthropic.APIStatusError), match="no engine is left") as dead:
            agent_of(kind, oai, ant, stream).ask("a")
        assert dead.value.status_code == 503
    engine.texts = ["Some words that come", EngineFault("it died")]
    with pytest.raises((openai.APIError, anthropic.APIError), match="it died"):
        agent_of(kind, oai, ant, stream=True).ask("b")
    assert [trajectory.error for trajectory in endpoint.recorder.take()] == ["no engine is left", "it died"]


STREAMS: dict[str, Callable[[openai.OpenAI, anthropic.Anthropic, list[Any]], Any]] = {
    "chat": lambda oai, _, messages: oai.chat.completions.create(model="p", messages=messages, stream=True),
    "responses": lambda oai, _, messages: oai.responses.create(model="p", input=messages, stream=True),
    "messages": lambda _, ant, messages: ant.messages.create(model="p", messages=messages, max_tokens=500, stream=True),
}


@pytest.mark.parametrize("style", STREAMS)
def test_a_cut_stream_stops_the_engine_and_leaves_no_trace(
    style: str, oai: openai.OpenAI, ant: anthropic.Anthropic, engine: Stated, endpoint: Endpoint
) -> None:
    engine.texts = ["One.", "word " * 300, "Two."]
    engine.pause = 0.01
    messages: list[Any] = [{"role": "user", "content": "Count."}]
    list(STREAMS[style](oai, ant, messages))
    messages += [{"role": "assistant", "content": "One."}, {"role": "user", "content": "On."}]
    with STREAMS[style](oai, ant, messages) as cut:
        for number, _ in enumerate(cut):
            if number == 6:
                break
    for _ in range(500):
        if engine.cuts:
            break
        time.sleep(0.01)
    assert engine.cuts == 1 and engine.streamed < 300
    list(STREAMS[style](oai, ant, messages))
    (trajectory,) = endpoint.recorder.take()
    assert [turn.action for turn in trajectory.turns] == ["One.<|im_end|>", "Two.<|im_end|>"]
    assert trajectory.error is None
    assert engine.contexts[1] == engine.contexts[2] == context_of(trajectory)[: len(engine.contexts[2])]


@pytest.mark.parametrize("kind", AGENTS)
def test_a_timeout_and_its_retry_are_one_request(
    kind: type[Chat], oai: openai.OpenAI, ant: anthropic.Anthropic, engine: Stated, endpoint: Endpoint
) -> None:
    engine.texts = ["One.", "late", "Two."]
    agent = agent_of(kind, oai, ant)
    agent.ask("Count.")
    engine.delay = 30.0
    patient, agent.client = agent.client, agent.client.with_options(timeout=0.5)
    with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
        agent.ask("On.")
    for _ in range(500):
        if engine.cuts:
            break
        time.sleep(0.01)
    engine.delay, agent.client = 0.0, patient
    agent.messages.pop()
    assert agent.ask("On.")[1] == "Two."
    (trajectory,) = endpoint.recorder.take()
    assert [turn.action for turn in trajectory.turns] == ["One.<|im_end|>", "Two.<|im_end|>"]
    assert engine.contexts[1] == engine.contexts[2] == context_of(trajectory)[: len(engine.contexts[2])]


def test_both_clients_list_the_policy(oai: openai.OpenAI, ant: anthropic.Anthropic) -> None:
    assert [model.id for model in oai.models.list()] == [model.id for model in ant.models.list()] == ["p"]
    assert oai.models.retrieve("p").id == ant.models.retrieve("p").id == "p"
    with pytest.raises(anthropic.NotFoundError, match="serves 'p'"):
        ant.models.retrieve("q")
