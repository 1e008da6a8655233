"""Search-R1's tag text: what was observed and what was written, several tags in one action, prompts that hold tags themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.warehouse.rows import written
from warehouse.importers.search_r1 import read_search_r1
from warehouse.records import NOT_RUN, Outcome, Trajectory

PROMPT = "Answer the given question. For example, <answer> Beijing </answer>. You can <search> query </search>. Question: Who?\n"
SEARCH = "<think>a</think>\n<search> amber </search>\n\n<information>Doc 1(Title: T) text\n</information>\n\n"


def only(tmp_path: Path, text: str) -> Trajectory:
    row = {"input": PROMPT, "output": text, "gts": {"target": ["Amber"]}, "score": 1.0, "step": 12}
    (run,) = read_search_r1(written(tmp_path / "12.jsonl", row)).trajectories
    return run


def turns(run: Trajectory) -> list[tuple[Any, ...]]:
    return [(turn.tool, turn.arguments, turn.observation, turn.tool_outcome) for turn in run.turns]


def test_a_dump_of_verl_becomes_a_task_turns_and_a_score(tmp_path: Path) -> None:
    text = SEARCH + "<think>b</think><answer> Amber </answer>"
    row = {"input": PROMPT, "output": text, "gts": {"target": ["Amber", "A"]}, "score": 1.0, "step": 12}
    task, run, score = read_search_r1(written(tmp_path / "12.jsonl", row)).records
    assert (task.question, task.answers, run.answer, run.outcome) == ("Who?", ("Amber", "A"), "Amber", Outcome.SUCCESS)
    assert turns(run) == [("search", "amber", "Doc 1(Title: T) text", None), ("answer", "Amber", "", None)]
    assert run.turns[0].action == "<think>a</think>\n<search> amber </search>"
    assert (score.verifier, score.value) == ("search-r1_score", 1.0)


def test_no_tag_of_an_action_is_dropped(tmp_path: Path) -> None:
    run = only(tmp_path, "<search>a</search><answer>no</answer><search>b</search>\n\n<information>x</information>\n\n<answer>A</answer>")
    assert turns(run) == [
        ("search", "a", "x", None), ("answer", "no", "", NOT_RUN), ("search", "b", "", NOT_RUN), ("answer", "A", "", None)
    ]  # fmt: skip


def test_information_that_the_policy_wrote_itself_is_not_an_observation(tmp_path: Path) -> None:
    run = only(tmp_path, "<think>a</think><information>made up</information><answer>A</answer>")
    assert turns(run) == [("answer", "A", "", None)]
    assert "made up" in run.turns[0].action


@pytest.mark.parametrize(
    "text",
    [
        "<search>a</search>\n\n<information>cut off <answer>evil</answer>",
        "<search>a</search>\n\n<information>cut <search>b</search>\n\n<information>x</information><answer>A</answer>",
    ],
)
def test_information_that_is_not_closed_is_set_aside(tmp_path: Path, text: str) -> None:
    made = read_search_r1(written(tmp_path / "12.jsonl", {"question": "Who?", "response": text}))
    assert (len(made.failures), len(made.trajectories)) == (1, 0)
    assert "not closed" in made.failures[0].reason
