"""Chat messages with tool calls: every call with its result, the order of results, answers, broken rows, hostile strings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.data.imports import import_file
from warehouse import Lake
from warehouse.errors import RequestError
from warehouse.importers.openai import read_openai
from warehouse.importers.runs import ImportedRuns
from warehouse.records import Outcome, StopReason, Trajectory


def call(identity: str, name: str = "search", arguments: Any = '{"q": "a"}') -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: Any, content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def gives(identity: str | None, content: Any = "seen") -> dict[str, Any]:
    return {"role": "tool", "content": content} | ({} if identity is None else {"tool_call_id": identity})


SYSTEM, QUESTION, ANSWER = (
    {"role": "system", "content": "You search."},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "Amber"},
)


def row(*spoken: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [SYSTEM, QUESTION, *spoken]} | more


def read(tmp_path: Path, *rows: Any) -> ImportedRuns:
    path = tmp_path / "model_a.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in rows))
    return read_openai(path)


def only(tmp_path: Path, *spoken: Any, **more: Any) -> Trajectory:
    made = read(tmp_path, row(*spoken, **more))
    assert not made.failures
    return made.trajectories[0]


def calls(run: Trajectory) -> list[tuple[str, str | None, str | None, str]]:
    return [(one.tool, one.arguments, one.outcome, one.observation) for turn in run.turns for one in turn.calls]


def test_several_calls_of_one_message_keep_their_results_in_any_order(tmp_path: Path) -> None:
    run = only(tmp_path, asks(call("1"), call("2", "open"), call("3")), gives("2", "two"), gives("1", "one"), gives("3", "three"), ANSWER)
    assert [one[3] for one in calls(run)] == ["one", "two", "three", ""]
    assert (len(run.turns), run.turns[0].observation, run.turns[0].tool) == (2, "one\ntwo\nthree", "search")


def test_calls_without_a_result_are_kept_and_results_without_a_call_refused(tmp_path: Path) -> None:
    run = only(tmp_path, asks(call("1"), call("2")), gives("2"), ANSWER)
    assert [(one[0], one[2]) for one in calls(run)] == [("search", None), ("search", "ok"), ("answer", None)]
    made = read(tmp_path, row(asks(call("1")), gives("9"), ANSWER), row(gives("1"), ANSWER))
    assert ["that was not made" in failure.reason for failure in made.failures] == [True, True]


@pytest.mark.parametrize(
    ("spoken", "error"),
    [
        ((), "empty"),
        ((asks(call("1")),), "cancelled"),
        ((asks(call("1")), gives("1")), "cancelled"),
        ((ANSWER, QUESTION), "cancelled"),
    ],
)
def test_a_run_without_an_end_is_invalid_and_has_no_score(tmp_path: Path, spoken: tuple[Any, ...], error: str) -> None:
    made = read(tmp_path, row(*spoken, reward=0))
    run = made.trajectories[0]
    assert (run.outcome, run.stop_reason, run.reward, len(made.records)) == (Outcome.INVALID, StopReason.FAULT, None, 2)
    assert run.error is not None
    assert run.error.startswith(error)


@pytest.mark.parametrize(
    ("reward", "outcome"), [(0.6, Outcome.FAILURE), (-1, Outcome.FAILURE), (True, Outcome.SUCCESS), (7, None), (None, None)]
)
def test_full_marks_are_a_success_and_an_unknown_scale_gives_no_verdict(tmp_path: Path, reward: Any, outcome: Outcome | None) -> None:
    made = read(tmp_path, row(ANSWER, score=reward))
    run = made.trajectories[0]
    assert (run.outcome, run.reward) == (outcome, None if reward is None else float(reward))
    assert len(made.records) == 2 + (outcome is not None)


def test_broken_rows_are_set_aside_with_line_and_reason(tmp_path: Path) -> None:
    broken: list[Any] = [
        "{", "[1", '"text"', "null", '{"messages": NaN}', '{"messages": [{"role": "user", "content": "\\ud800"}]}', {"messages": "none"},
        {"messages": []}, {"messages": [3]}, {"messages": [{"role": "robot"}]}, {"messages": [{"role": [1]}]}, row(asks("{")), row(asks(3)),
        row(asks({"id": 1})), row({"role": "assistant", "content": 3}), row({"role": "assistant", "tool_calls": 3}),
        row(ANSWER, reward="x"), row(ANSWER, reward=float("inf")), row(ANSWER, answer={}),
        "[" * 100_000, '{"messages": ' + "9" * 5000 + "}",
    ]  # fmt: skip
    made = read(tmp_path, row(ANSWER), "", *broken, row(ANSWER, reward=0))
    assert [failure.item["line"] for failure in made.failures] == list(range(3, 3 + len(broken)))
    assert (made.rows, len(made.trajectories)) == (len(broken) + 2, 2)
    assert all(failure.kind == "openai_row" and f"line {failure.item['line']}:" in failure.reason for failure in made.failures)


def test_a_list_is_read_row_by_row_and_what_follows_a_break_is_one_fault(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    text = json.dumps([row(ANSWER), 3, row(ANSWER, reward=0)], indent=1)
    path.write_text("\ufeff" + text)
    lines = text.splitlines()
    made = read_openai(path)
    assert [run.outcome for run in made.trajectories] == [None, Outcome.FAILURE]
    assert [lines[failure.item["line"] - 1] for failure in made.failures] == [" 3,"]
    path.write_text(text[:-40])
    made = read_openai(path)
    assert (len(made.trajectories), len(made.failures), made.rows) == (1, 2, 3)
    for end in ("[", "[]x", "[{}"):
        path.write_text(end)
        assert len(read_openai(path).failures) == (2 if end == "[{}" else 1)
    path.write_text("[]")
    assert read_openai(path).rows == 0
    with pytest.raises(RequestError, match="there is no file"):
        read_openai(tmp_path / "none.json")


@pytest.mark.slow
def test_the_same_row_twice_in_a_file_is_two_samples_and_importing_twice_changes_nothing(tmp_path: Path) -> None:
    read(tmp_path, row(ANSWER, reward=1), row(ANSWER, reward=1), "{")
    first, second = (import_file("openai", tmp_path / "model_a.jsonl", tmp_path / "home") for _ in range(2))
    assert first["trajectories"] == {"read": 2, "new": 2}
    assert [second[table]["new"] for table in ("tasks", "trajectories", "scores")] == [0, 0, 0]
    with Lake(tmp_path / "home", read_only=True) as lake:
        assert (len(lake.trajectories()), len(lake.scores()), len(lake.failures())) == (2, 2, 1)


HOSTILE = "'; DROP TABLE trajectories; -- <|im_end|><|endoftext|></s><tool_call> a\x00b \u202e\U0001f600 $1 ? %s {}" + "x" * 1_000_000


@pytest.mark.slow
def test_hostile_strings_survive_everywhere(tmp_path: Path) -> None:
    text = HOSTILE
    spoken = [asks(call(text, text, text)), gives(text, text), {"role": "assistant", "content": text}]
    given = {"messages": [{"role": "user", "content": text}, *spoken], "model": text, "answer": text, text: text}
    made = read(tmp_path, given)
    assert not made.failures
    with Lake(tmp_path / "home") as lake:
        lake.add(made.records)
        assert lake.tasks()[0].answers == (text,)
        run = lake.trajectories()[0]
        assert calls(run) == [(text, text, "ok", text), ("answer", text, None, "")]
        assert (run.policy, run.provenance["row"]) == (text, given)
