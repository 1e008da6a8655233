"""WebDancer's runs: every call is a turn, broken rows are set aside, cancelled runs are invalid, and the text can be had back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.clock import processor_seconds
from tests.real_data import DATA, needs
from tests.warehouse.rows import written
from warehouse import Lake
from warehouse.importers.webdancer import read_webdancer
from warehouse.records import Task, Trajectory

RUNS = DATA / "trajectories" / "webdancer"

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": ["q"]}}\n</tool_call>'


def row(*spoken: str, **changed: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(("Use tools.\n\nUser: Who?", *spoken))]
    messages.insert(0, {"role": "system", "content": "You search."})
    return {"messages": messages, "answer": [["Amber"]], "tag": "t", "tool_calls": []} | changed


def only(tmp_path: Path, row: dict[str, Any]) -> Trajectory:
    (run,) = read_webdancer(written(tmp_path / "runs.jsonl", row)).trajectories
    return run


def test_a_run_becomes_a_task_and_its_turns(tmp_path: Path) -> None:
    answer = "<think>\nfound <answer>no</answer>\n</think>\n<answer>\nAmber Stone\n</answer>"
    spoken = (f"<think>\nfirst\n</think>\n{CALL}", "<tool_response>\nseen\n</tool_response>", answer)
    task, run = read_webdancer(written(tmp_path / "runs.jsonl", row(*spoken))).records
    assert isinstance(task, Task)
    assert isinstance(run, Trajectory)
    assert (task.question, task.answers, task.split, run.task_key) == ("Who?", ("Amber",), "import", task.key)
    assert [(turn.tool, turn.arguments, turn.observation) for turn in run.turns] == [
        ("search", '{"query": ["q"]}', "seen"),
        ("answer", "Amber Stone", ""),
    ]
    assert (run.stage, run.outcome, run.reward, run.answer, run.started) == ("import", None, None, "Amber Stone", None)
    assert (run.provenance["system"], run.provenance["instructions"], run.provenance["tag"]) == (["You search."], "Use tools.\n", "t")


def test_no_call_of_a_message_is_dropped(tmp_path: Path) -> None:
    two = f"<think>a</think>{CALL}{CALL.replace('q', 'r')}"
    both = "<tool_response>one</tool_response>\n<tool_response>two</tool_response>"
    run = only(tmp_path, row(two, both, "<answer>A</answer>"))
    assert [turn.observation for turn in run.turns] == ["one", "two", ""]
    assert "".join(turn.action for turn in run.turns[:2]) == two
    together = only(tmp_path, row(two, "<tool_response>all</tool_response>", "<answer>A</answer>"))
    assert [turn.observation for turn in together.turns] == ["", "<tool_response>all</tool_response>", ""]
    spoilt = only(tmp_path, row("<tool_call>{no json}</tool_call>", "error", "<answer>A</answer>"))
    assert [(turn.tool, turn.tool_outcome) for turn in spoilt.turns] == [(None, "unparsable"), ("answer", None)]


def test_rows_that_are_no_run_are_set_aside(tmp_path: Path) -> None:
    broken = ["null", row(answer=[[3]]), row(messages="none"), {"answer": ["A"]}, row("a", "b", "c", answer=[None])]
    orphan, role = row("<answer>A</answer>", "x", "", "y"), row("<answer>A</answer>")
    orphan["messages"].pop(-2)
    role["messages"][1]["role"] = "robot"
    read = read_webdancer(written(tmp_path / "runs.jsonl", row("<answer>A</answer>"), *broken, role, orphan))
    assert (read.rows, len(read.trajectories)) == (8, 1)
    assert [failure.item["line"] for failure in read.failures] == [2, 3, 4, 5, 6, 7, 8]


SEARCH = {"name": "search", "description": "Looks.", "parameters": {"type": "object", "properties": {"query": {"type": "array"}}}}
VISIT = {"name": "visit", "parameters": {}}


def offered(tmp_path: Path, instructions: str) -> Any:
    """What a run is recorded to have been offered whose first message holds these instructions."""
    told = row(f"<think>a</think>{CALL}", "<tool_response>seen</tool_response>", "<answer>A</answer>")
    told["messages"][1]["content"] = f"{instructions}\n\nUser: Who?"
    run = only(tmp_path, told)
    assert run.provenance["instructions"] == f"{instructions}\n"
    return run.provenance["tools"]


def test_the_tools_on_offer_are_those_that_the_instructions_list(tmp_path: Path) -> None:
    listed = f"Call them.\n<tools>\n{json.dumps(SEARCH)}\n{json.dumps(VISIT)}\n</tools>\nThen answer."
    assert offered(tmp_path, listed) == [{"type": "function", "function": SEARCH}, {"type": "function", "function": VISIT}]


@pytest.mark.parametrize(
    "instructions",
    ["Use tools.", f"<tools>{json.dumps(SEARCH)} and more</tools>", '<tools>{"name": 3}</tools>', f"<tools>{'[' * 100_000}</tools>"],
    ids=["none", "half", "no name", "too deep"],
)
def test_instructions_that_list_no_tools_offer_none_and_the_run_is_kept(tmp_path: Path, instructions: str) -> None:
    assert offered(tmp_path, instructions) == []


@pytest.mark.slow
@needs("trajectories/webdancer")
def test_the_released_runs_are_kept_whole(tmp_path: Path) -> None:
    read = read_webdancer(RUNS)
    assert (read.rows, len(read.trajectories), len(read.failures)) == (120, 120, 0)
    rows = [json.loads(line) for line in (RUNS / "sample_traj.120.jsonl").read_text().splitlines()]
    for source, run in zip(rows, read.trajectories, strict=True):
        written = [message["content"] for message in source["messages"] if message["role"] == "assistant"]
        answered = [message["content"] for message in source["messages"][2:] if message["role"] == "user"]
        assert [turn.action for turn in run.turns] == written
        assert [f"<tool_response>\n{turn.observation}\n</tool_response>" for turn in run.turns[:-1]] == answered
        assert len(re.findall("</tool_call>|</answer>", "".join(written))) == len(run.turns)
        assert all(turn.tool for turn in run.turns)
        assert [tool["function"]["name"] for tool in run.provenance["tools"]] == ["search", "visit"]
    with Lake(tmp_path) as lake:
        lake.add([*read.records, *read.failures])
        before = lake.query("SELECT * FROM trajectories ORDER BY id").to_pylist()
        lake.add([*read_webdancer(RUNS).records])
        assert lake.query("SELECT * FROM trajectories ORDER BY id").to_pylist() == before
        assert lake.query("SELECT count(*) AS n FROM turns").to_pylist() == [{"n": 249}]
        assert {run.id: run for run in lake.trajectories()} == {run.id: run for run in read.trajectories}


def test_thousands_of_tools_are_read_in_one_pass(tmp_path: Path) -> None:
    tools = '{"name": "a"}\n,' * 30_000
    began = processor_seconds()
    assert len(offered(tmp_path, f"<tools>{tools}</tools>")) == 30_000
    assert processor_seconds() - began < 3
