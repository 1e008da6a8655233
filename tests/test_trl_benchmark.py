"""What TRL's loop is given in the benchmarks: the prompts, actions and observations that ours are made of, and the same rewards."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.trl_search import environment_of, reward_of, tokenizer_of
from rl.envs.search import SearchEnvironment
from rl.renderers.base import Action, ActionTurn, Result, Truncation
from rl.renderers.registry import TEMPLATES, open_dialect
from rl.retrieval.search import SearchIndex
from tests.chat_models import create_chat_model
from tests.rl.conftest import DOCUMENTS, create_tiny_policy

QUESTION = "Where is Amber Stone?"


@pytest.mark.engine
@pytest.mark.parametrize("dialect", ["tags", "chat"])
def test_both_loops_write_the_same_tokens(dialect: str, tmp_path: Path) -> None:
    if dialect == "chat":
        policy = create_chat_model(tmp_path / "model")
        (policy / "chat_template.jinja").write_text(TEMPLATES["chatml_tools"].read_text())  # SmolLM2's; others show all of a schema
    else:
        policy = create_tiny_policy(tmp_path / "policy", seed=0)
    tokenizer, index = tokenizer_of(policy, dialect), SearchIndex(DOCUMENTS)
    tools = [environment_of(index, 1, 200)().search]
    ours, schemas = open_dialect(dialect, {}, tokenizer), SearchEnvironment(index).schemas
    prompt = ours.prompt_ids(QUESTION, tools=schemas)
    asked = [{"role": "user", "content": QUESTION}]
    assert tuple(tokenizer.apply_chat_template(asked, tools=tools, add_generation_prompt=True)["input_ids"]) == prompt

    action = ours.action_ids(ActionTurn((Action("search", "Amber Stone"),)), schemas)
    read = tokenizer.parse_response(list(action), prefix=list(prompt), tools=tools)
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "Amber Stone"}}}
    assert read["tool_calls"] == [call]

    found = tools[0]("Amber Stone")
    reply = ours.reply_ids(action, [Result(found)], Truncation(100))
    shown = [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "name": "search", "content": found}]
    assert tuple(tokenizer.apply_chat_template(shown, tools=tools, add_generation_prompt=True)["input_ids"]) == prompt + action + reply


def test_the_same_answers_are_right() -> None:
    right = [("Green Lake",)]
    tagged, plain = reward_of("tags"), reward_of("chat")
    assert tagged([[{"role": "assistant", "content": "<answer> green lake</answer>"}]], right) == [1.0]
    assert tagged([[{"role": "assistant", "content": " Green Lake"}]], right) == [0.0], "nothing is answered without its tag"
    assert plain([[{"role": "assistant", "content": "Green Lake"}]], right) == [1.0]
    assert plain([[{"role": "assistant", "content": "<answer> Blue River</answer>"}]], right) == [0.0]
    assert plain([[{"role": "assistant", "content": "", "tool_calls": [{}]}]], right) == [0.0]
