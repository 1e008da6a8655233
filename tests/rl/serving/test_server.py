"""The endpoint over a real engine, asked by the real `openai` client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trl
from langchain_core.messages import HumanMessage
from openai import OpenAI
from tokenizers import AddedToken

from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy, load_policy, save_policy
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts
from rl.serving.server import Serving, ServingConfig, serve
from tests.rl.policies.logprob_check import max_logprob_difference
from warehouse.errors import RequestError
from warehouse.records import Task, Trajectory

pytestmark = pytest.mark.engine
TOLERANCE = 1e-4
CONTROL = ("<|im_start|>", "<|im_end|>")
SYNTAX = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@pytest.fixture(scope="module")
def chat_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random policy with Qwen3's chat template for training."""
    config = PolicyConfig(
        layers=2, width=64, heads=2, key_value_heads=2, intermediate_size=128, vocabulary_size=400, max_position_embeddings=1024
    )
    folder = create_policy(config, ["Where is Amber Stone?"], ["Amber", "Stone"], tmp_path_factory.mktemp("chat"), seed=0)
    model, tokenizer = load_policy(folder)
    tokenizer.add_special_tokens({"extra_special_tokens": [*tokenizer.extra_special_tokens, *CONTROL]})
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in SYNTAX])
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3_training.jinja").read_text()
    model.resize_token_embeddings(len(tokenizer))
    save_policy(model, tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def rollouts(chat_policy: Path) -> Iterator[Rollouts]:
    limits = {"max_context_tokens": 1000, "max_action_tokens": 12}
    with Rollouts.start(RolloutConfig.model_validate({"engine": {"kv_cache_gib": 0.1}, "limits": limits}), chat_policy) as started:
        yield started


@pytest.fixture(scope="module")
def serving(rollouts: Rollouts, chat_policy: Path) -> Iterator[Serving]:
    with serve(rollouts, chat_policy, "tiny", ServingConfig()) as started:
        with pytest.raises(RequestError, match="cannot listen"):
            serve(rollouts, chat_policy, "tiny", ServingConfig(port=int(started.url.split(":")[2].partition("/")[0])))
        yield started


@pytest.fixture(scope="module")
def client(serving: Serving) -> OpenAI:
    return OpenAI(base_url=serving.url, api_key="none", max_retries=0)


def talk(client: OpenAI, name: str, turns: int) -> None:
    """An agent that says whatever was sampled back, with one more message."""
    messages: list = [{"role": "user", "content": f"Where is Amber Stone, {name}?"}]
    for turn in range(turns):
        answer = client.chat.completions.create(model="tiny", messages=messages, user=name, max_tokens=12, seed=turn)
        messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": f"And {turn}?"}]


def check(trajectory: Trajectory, policy: Path) -> None:
    """What was recorded is what the policy computes, token for token."""
    assert max_logprob_difference(load_policy(policy)[0], [trajectory]) < TOLERANCE


def test_agents_that_talk_at_once_become_trajectories_with_the_policys_own_logprobs(
    serving: Serving, client: OpenAI, chat_policy: Path
) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: talk(client, f"agent-{number}", 3), range(4)))
    for number in range(4):
        (trajectory,) = serving.take(f"agent-{number}")
        assert [len(turn.observation_ids) > 0 for turn in trajectory.turns] == [True, True, False]
        check(trajectory, chat_policy)


def test_logprobs_and_ids_are_given_as_they_are_recorded(serving: Serving, client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "?"}], max_tokens=5, logprobs=True, extra_body={"return_token_ids": True}
    )
    (trajectory,) = serving.take()
    (turn,) = trajectory.turns
    assert answer.choices[0].logprobs is not None
    assert [token.logprob for token in answer.choices[0].logprobs.content or ()] == pytest.approx(list(turn.action_logprobs))
    assert answer.choices[0].model_extra["token_ids"] == list(turn.action_ids)  # type: ignore[index]
    assert answer.model_extra["prompt_token_ids"] == list(trajectory.prompt_ids)  # type: ignore[index]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(turn.action_ids)


def test_completions_go_on_from_ids(serving: Serving, client: OpenAI, chat_policy: Path) -> None:
    extra = {"return_token_ids": True}
    first = client.completions.create(model="tiny", prompt=[20, 21, 22], max_tokens=6, user="ids", logprobs=1, extra_body=extra)
    ids = [20, 21, 22, *first.choices[0].model_extra["token_ids"], 30]  # type: ignore[index]
    client.completions.create(model="tiny", prompt=ids, max_tokens=6, user="ids")
    (trajectory,) = serving.take("ids")
    assert trajectory.turns[0].observation_ids == (30,)
    check(trajectory, chat_policy)


def test_a_langchain_model_is_asked_from_any_thread_and_recorded(serving: Serving, chat_policy: Path) -> None:
    model = serving.chat_model(conversation="chain", max_tokens=6, seed=3)
    first = model.invoke([HumanMessage("Where?")])
    asyncio.run(model.ainvoke([HumanMessage("Where?"), first, HumanMessage("And then?")]))
    (trajectory,) = serving.take("chain")
    assert list(trajectory.turns[0].action_ids) == first.response_metadata["token_ids"]
    assert len(trajectory.turns) == 2
    check(trajectory, chat_policy)


def test_a_langgraph_agent_is_a_loop_of_rollouts_beside_the_endpoint(rollouts: Rollouts, chat_policy: Path) -> None:
    choice = {"rollout": {"loop": "langgraph", "dialect": "chat"}}
    tasks = [Task(f"c{number}", "calculator", f"What is {number} + 1?", (), provenance=choice) for number in range(4)]
    trajectories = rollouts.rollout([RolloutRequest(task.key, task, "tiny", 3, seed=1) for task in tasks])
    assert {trajectory.error for trajectory in trajectories} == {None}
    assert all(trajectory.turns for trajectory in trajectories)
    for trajectory in trajectories:
        check(trajectory, chat_policy)
