"""The task that a row makes, and what no row may decide about its task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.real_data import DATA, needs
from tests.warehouse.rows import written
from warehouse.benchmark_sets import read_gsm8k, read_humaneval, read_mbpp
from warehouse.errors import RequestError
from warehouse.importers.tasks import TaskFormat, read_tasks
from warehouse.records import Task

FORM = TaskFormat("mine", "search", "qa_em")
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]


def read(tmp_path: Path, *rows: Any, form: TaskFormat = FORM) -> tuple[list[Task], list[str]]:
    """The tasks of rows, and the reasons of those that make none."""
    found = read_tasks(written(tmp_path / "rows.jsonl", *rows), form)
    assert found.rows == len(rows) == len(found.records) + len(found.failures)
    assert {(failure.stage, failure.kind) for failure in found.failures} <= {("import", "broken_row")}
    return [task for task in found.records if isinstance(task, Task)], [failure.reason for failure in found.failures]


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"id": 7, "question": "Who?", "answers": ["Ann", "A."]}, ("Ann", "A.")),
        ({"id": 7, "question": "Who?", "answer": "Ann"}, ("Ann",)),
        ({"id": 7.0, "question": "Who?", "answer": 7.0, "hops": 1.0}, ("7",)),
        ({"id": 7, "question": "Who?", "answer": [0.5, -2e15]}, ("0.5", "-2000000000000000")),
        ({"id": 7, "question": "Who?", "answers": '["Ann", "A."]'}, ("Ann", "A.")),
        ({"id": 7, "question": "Who?", "answer": "[0, 1)"}, ("[0, 1)",)),
        ({"example_id": 7, "prompt": ASKED, "answer": "Ann", "info": {"item": 3}}, ("Ann",)),
        ({"example_id": 7, "prompt": "Who?", "answer": "Ann", "info": '{"item": 3}'}, ("Ann",)),
        ({"id": 7, "input": "Who?", "target": ["Ann", "A."], "metadata": {"item": 3}}, ("Ann", "A.")),
    ],
)
def test_rows_of_verifiers_of_inspect_and_of_users_are_tasks(row: dict[str, Any], answers: tuple[str, ...], tmp_path: Path) -> None:
    (task,), _ = read(tmp_path, row)
    item = {"item": 3} if {"info", "metadata"} & set(row) else {}
    provenance = {**item, "source": "mine", "verifier": "qa_em", "place": {"file": "rows.jsonl", "line": 1}}
    assert task == Task("mine-7", "search", "Who?", answers, provenance=provenance)
    assert (task.split, task.hops, task.constraints, task.layers) == ("train", 1, 1, 1)


def test_columns_are_mapped_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    form = replace(FORM, columns={"question": "problem", "answers": "solution", "hops": "level", "provenance": "about"})
    (task,), _ = read(tmp_path, {"problem": "Who?", "solution": "Ann", "level": "3", "about": "old", "answer": "Bob"}, form=form)
    assert (task.question, task.answers, task.hops, task.provenance["info"], task.proofs) == ("Who?", ("Ann",), 3, "old", {})


def test_a_row_cannot_say_who_judges_it_or_what_runs_it(tmp_path: Path) -> None:
    told = dict.fromkeys(("verifier", "options", "rollout", "source", "place", "suite", "origin"), "os:system")
    rows = [{"question": "Who?", "answer": "Ann", name: {**told, "item": 1}, "environment": "game", "split": "held_out", "verifier": "set"}
            for name in ("provenance", "info", "metadata")]  # fmt: skip
    for row in rows:
        (task,), _ = read(tmp_path, row, form=replace(FORM, options={"set": True}))
        place = {"file": "rows.jsonl", "line": 1}
        assert task.provenance == {"item": 1, "source": "mine", "verifier": "qa_em", "options": {"set": True}, "place": place}
        assert (task.environment, task.split) == ("search", "train")


GOOD = {"question": "Who?", "answer": "Ann"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not valid JSON"),
        ([1], "not an object"),
        ({"answer": "Ann"}, "question"),
        ({"question": "Who?"}, "no accepted answer"),
        ({**GOOD, "answer": True}, "neither text nor a number"),
        ({**GOOD, "answer": "['Ann', 'A.']"}, "not a JSON list"),
        ({**GOOD, "answer": ["Ann", "M\ufffdlaga"]}, "UTF-8"),
        ({**GOOD, "answer": "A\x00"}, "UTF-8"),
        ({**GOOD, "id": 1.5}, "1.5"),
        ({**GOOD, "question": "\ud800"}, "no table can"),
        ('{"question": "Who?", "answer": NaN}', "no table can"),
        ({**GOOD, "hops": -1}, "hops is -1"),
        ({**GOOD, "question": [{"role": "assistant", "content": "I."}]}, "user message is missing"),
        ({**GOOD, "formula": [["a"]]}, "not a triple"),
    ],
)
def test_a_row_that_makes_no_task_is_set_aside_with_file_and_line(row: Any, reason: str, tmp_path: Path) -> None:
    tasks, reasons = read(tmp_path, GOOD, row)
    assert len(tasks) == 1
    assert reasons[0].startswith("rows.jsonl, line 2: ") and reason in reasons[0]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({}, r"question .*problem, answer.* --column question=COLUMN"),
        ({"question": "task"}, "'task'.* problem, answer"),
        ({"questions": "problem"}, "'questions'.* id, question, answers"),
    ],
)
def test_missing_columns_are_named_with_how_to_map_them(columns: dict[str, str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=reason):
        read(tmp_path, {"problem": "Who?", "answer": "Ann"}, form=replace(FORM, columns=columns))


@pytest.mark.slow
@needs("math_gsm8k", "code_humaneval", "code_mbpp_sanitized")
@pytest.mark.parametrize(
    ("path", "verifier", "reader"),
    [
        ("math_gsm8k/test.jsonl", "gsm8k", read_gsm8k),
        ("code_humaneval/HumanEval.jsonl.gz", "code", read_humaneval),
        ("code_mbpp_sanitized/test.jsonl", "code", read_mbpp),
    ],
)
def test_published_sets_are_what_their_own_readers_make_of_them(path: str, verifier: str, reader: Any) -> None:
    found, expected = read_tasks(DATA / path, TaskFormat("set", "python", verifier)), reader(DATA / path)
    tasks = [task for task in found.records if isinstance(task, Task)]
    assert not found.failures and len(tasks) == len(expected)
    assert [
        replace(task, key=own.key, provenance=own.provenance, split=own.split) for task, own in zip(tasks, expected, strict=True)
    ] == expected
    assert len({task.key for task in tasks}) == len(tasks)
