"""What TRL's loop is given in the benchmarks: the prompts, actions and observations that ours are made of, and the same rewards."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.evidence_tables import learners, trl_time
from benchmarks.learning import Outcome, Reached, Setting, Watch
from benchmarks.trl_search import environment_of, reward_of, tokenizer_of
from flows.config import FlywheelConfig
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


@pytest.mark.parametrize(
    ("stop_after", "successes", "steps", "done"), [(3, [0.0] * 3, 3, True), (None, [1.0] * 5, 5, True), (9, [1.0] * 5, 5, False)]
)
def test_a_run_ends_with_its_goal_or_its_steps(stop_after: int | None, successes: list[float], steps: int, done: bool) -> None:
    watch = Watch("ours", Setting(Path(), (), (), FlywheelConfig(), 1, 0, 60.0, stop_after, False), 0.0)
    for success in successes[:-1]:
        watch.see(success)
    assert not watch.done
    if done:
        with pytest.raises(Reached):
            watch.see(successes[-1])
    else:
        watch.see(successes[-1])
    outcome = watch.outcome()
    assert outcome.steps == steps and (outcome.seconds is not None) == done and list(outcome.ends) == sorted(outcome.ends)


def test_who_does_not_come_that_far_bounds_the_ratio_from_below() -> None:
    ours, theirs = Outcome("ours", 0, 1.0, 20.0, 2, 0.5, (10.0, 20.0)), Outcome("TRL", 0, 2.0, None, 4, 0.5, (20.0, 30.0, 50.0, 60.0))
    assert "| 0 | 20 (2) | 60 (4, given up) | 3.0 | 1 | 2 |" in learners({"runs": [asdict(ours), asdict(theirs)]})


def test_of_a_number_of_steps_as_many_are_compared_as_both_have_made() -> None:
    ours, theirs = Outcome("ours", 0, 1.0, 40.0, 3, 0.5, (10.0, 15.0, 40.0)), Outcome("TRL", 0, 2.0, None, 2, 0.5, (30.0, 60.0))
    assert "| 0 | 40 (3) | 60 (2, given up) | 4.0 | 1 | 2 |" in learners({"runs": [asdict(ours), asdict(theirs)], "steps": 3})
    assert trl_time({"runs": [asdict(ours), asdict(theirs)], "steps": 3}) == "4.0"
    assert "| 0 | 40 (3) |  |  | 1 |  |" in learners({"runs": [asdict(ours)], "steps": 3})
