"""Conversations in a terminal, questions to policies that write tags, and conversations as rows of the lake."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from flows.serving import save
from rl.engines.base import EngineFault, Generation, GenerationStop, Sampling
from rl.envs.tool_use import ToolEnvironment
from rl.renderers.base import Truncation
from rl.renderers.chat import ChatDialect
from rl.renderers.tags import TagDialect
from rl.serving.chat_renderer import ChatRenderer
from rl.serving.endpoint import Caller, Endpoint
from rl.serving.protocol import ChatRequest, Refused
from rl.serving.question_renderer import QuestionRenderer
from rl.serving.recorder import Recorder
from rl.serving.terminal_chat import TerminalChat, Tools
from rl.tools import tool
from tests.rl.serving.stated import TEMPLATE, Stated, context_of
from tests.rl.serving.test_chat_renderer import SEARCH
from warehouse import Lake, Policy


@tool
def multiply(a: int, b: int) -> str:
    """Multiply.

    Args:
        a: a number.
        b: another.
    """
    return f"{a * b}\x1b[2J"


CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'
TOOLS = Tools("multiplying", lambda: ToolEnvironment({"multiply": multiply}), 2, Truncation(64))


def endpoint_of(engine: Any) -> Endpoint:
    return Endpoint(engine, Recorder("p", "serve", "serve-1"), TEMPLATE.plain, ChatRenderer(ChatDialect(TEMPLATE)), "", "p", 2000)


@pytest.mark.parametrize(
    ("tools", "texts", "said", "shown", "turns"),
    [
        (None, ["Hello\x1b[2J", "Again"], ["a", "b"], "Hello\\x1b[2J\nAgain\n", [2]),
        (TOOLS, [CALL, "42.", "Yes."], ["6 * 7?", "Sure?"], '  multiply {"a": 6, "b": 7}\n  = 42\\x1b[2J\n42.\nYes.\n', [3]),
        (TOOLS, [CALL, CALL, "Hi."], ["a", "b"], "[the policy made 2 calls without an answer; a new conversation begins]\nHi.\n", [2, 1]),
        (None, [EngineFault("it died"), "Hi."], ["a", "b"], "[the engine failed: it died; a new conversation begins]\nHi.\n", [0, 1]),
        (None, ["<think>\nHm.\n</think>\n\nHi."], ["a"], "[thought] Hm.\nHi.\n", [1]),
    ],
)
def test_a_terminal_shows_replies_and_calls_and_goes_on_after_failures(
    tools: Tools | None, texts: list[Any], said: list[str], shown: str, turns: list[int]
) -> None:
    endpoint, printed = endpoint_of(Stated(*texts)), list[str]()

    async def talk() -> None:
        conversation = TerminalChat(endpoint, printed.append, [], tools, 0.0)
        for line in said:
            await conversation.say(line)
        await conversation.close()

    asyncio.run(talk())
    assert "".join(printed).endswith(shown)
    assert [len(trajectory.turns) for trajectory in endpoint.recorder.take()] == turns


class Tagged:
    """An engine that writes the texts it is given, with the tokens of a policy's tags."""

    def __init__(self, tokenizer: Any, *texts: str) -> None:
        self.tokenizer, self.texts = tokenizer, list(texts)
        self.contexts: list[tuple[int, ...]] = []

    async def stream(self, request_id: str, prompt_ids: Any, sampling: Sampling) -> Any:
        self.contexts.append(tuple(prompt_ids))
        ids = tuple(self.tokenizer(self.texts.pop(0), add_special_tokens=False)["input_ids"])
        yield ids
        yield Generation(ids, (-0.5,) * len(ids), GenerationStop.STOP, (0,) * len(ids))


def test_a_policy_that_writes_tags_answers_questions_with_tools(tiny_policy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    dialect = TagDialect(tokenizer)
    call, answer = "<think> I look</think><search> Amber</search>", "<answer> Blue</answer>"
    engine = Tagged(tokenizer, call, answer, answer)
    endpoint = Endpoint(engine, Recorder("p", "serve", "r"), TEMPLATE.plain, QuestionRenderer(dialect), "", "p", 500)  # type: ignore[arg-type]

    async def send(messages: list[Any]) -> Any:
        request = ChatRequest.model_validate({"model": "p", "messages": messages, "tools": [SEARCH]})
        return [part async for part in endpoint.stream(endpoint.ask(request, Caller(None, None)))][-1]

    asked = {"role": "user", "content": "Amber"}
    reply = asyncio.run(send([asked]))
    assert (reply.thought, reply.finish) == ("I look", "tool_calls")
    assert reply.message.calls[0].function.arguments == '{"query": "Amber"}'
    said = [asked, reply.message.model_dump(), {"role": "tool", "tool_call_id": reply.message.calls[0].id, "content": "Blue"}]
    final = asyncio.run(send(said))
    assert (final.message.content, final.finish) == ("Blue", "stop")
    for wrong in ([*said, final.message.model_dump(), asked], [{"role": "system", "content": "a"}, asked]):
        with pytest.raises(Refused, match="one question per conversation"):
            asyncio.run(send(wrong))
    (trajectory,) = endpoint.recorder.take()
    assert context_of(trajectory)[: len(engine.contexts[1])] == engine.contexts[1]
    results = dialect.decode(trajectory.turns[0].observation_ids)
    assert results == "<information> Blue</information>" and trajectory.prompt_ids == dialect.prompt_ids("Amber", tools=[SEARCH])


def test_conversations_are_rows_of_the_lake_while_they_grow(tmp_path: Path) -> None:
    endpoint = endpoint_of(Stated("One.", "Two.", "Three.", "Four."))
    recorder, policy = endpoint.recorder, Policy("p", None, "rl", "policies/p", "d", None, wheel_turn=3)

    async def send(count: int, name: str | None) -> None:
        messages: list[Any] = [{"role": "user", "content": "a"}]
        for _ in range(count):
            reply = await endpoint.chat(ChatRequest.model_validate({"model": "p", "messages": messages}), Caller(name, None))
            messages += [reply.message.model_dump(), {"role": "user", "content": "b"}]

    def store() -> dict[str, int]:
        save(recorder.changed(), lake, policy, "serve-1")
        return {each.id: len(each.turns) for each in lake.trajectories("stage = 'serve' AND wheel_turn = 3")}

    with Lake(tmp_path) as lake:
        asyncio.run(send(1, "mine"))
        assert store() == {"serve-1-mine": 1}
        assert recorder.changed() == []
        endpoint.recorder.find("mine", lambda history: 1).segment.histories[:] = [None]  # type: ignore[union-attr]
        asyncio.run(send(2, None))
        assert store() == {"serve-1-mine": 1, "serve-1-000000": 2}
        assert recorder.forget(3600) == [] and sorted(recorder.forget(-1)) == ["mine", "serve-1-000000"]
        asyncio.run(send(1, "mine"))
        assert store() == {"serve-1-mine": 1, "serve-1-000000": 2, "serve-1-mine.1": 1}, "the earlier one is not overwritten"
        (stored,) = lake.trajectories("id = 'serve-1-000000'")
        assert context_of(stored)[: len(stored.prompt_ids)] == stored.prompt_ids
        assert stored.turns[0].action_ids == TEMPLATE.encode(["Two.<|im_end|>"], {}) and stored.turns[0].observation_ids
