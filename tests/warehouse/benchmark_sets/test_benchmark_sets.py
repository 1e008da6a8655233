"""Question sets of others: read whole or not at all, and the real ones as large as they are known to be."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.real_data import DATA, needs
from tests.warehouse.rows import written
from warehouse.benchmark_sets import CORPUS, QUESTIONS, read_gsm8k, read_humaneval, read_mbpp, read_musique, read_tasks
from warehouse.errors import RequestError


def test_programs_keep_their_tests_as_the_answer_and_their_solution_out_of_sight(tmp_path: Path) -> None:
    row = {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    return 1\n", "test": "t", "entry_point": "f"}
    packed = tmp_path / "HumanEval.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(row).encode()))
    (task,) = read_humaneval(packed)
    assert json.loads(task.answers[0]) == {"prompt": "def f():\n", "test": "t", "entry_point": "f"}
    assert task.proofs == {"solution": "def f():\n    return 1\n"} and "return 1" not in task.question
    row = {"prompt": "Write g.", "code": "def g(): pass", "test_list": ["assert g() is None"], "test_imports": []}
    (task,) = read_mbpp(written(tmp_path / "test.jsonl", row))
    assert json.loads(task.answers[0]) == {"test_list": ["assert g() is None"], "test_imports": []}


def test_musique_has_its_hops_its_aliases_and_its_own_passages(tmp_path: Path) -> None:
    row = {"id": "2hop__1_2", "question": "Who?", "answer": "Ann Lee", "answer_aliases": ["A. Lee"], "question_decomposition": [{}, {}]}
    (tmp_path / QUESTIONS).write_text(json.dumps([row, {**row, "id": "no", "answerable": False}]))
    (tmp_path / CORPUS).write_text(json.dumps([{"title": "T", "text": "one"}, {"title": "T", "text": "two"}]))
    (task,), documents = read_musique(tmp_path)
    assert (task.hops, task.answers) == (2, ("Ann Lee", "A. Lee"))
    assert [document.id for document in documents] == ["musique:0", "musique:1"], "two passages may bear one title"


def test_plain_rows_and_exported_ones_are_tasks(tmp_path: Path) -> None:
    exported = {
        "key": "k",
        "question": "Who?",
        "answers": ["Ann"],
        "formula": '[["C@x", "r", "?"]]',
        "hops": 2,
        "proofs": '{"easy": false}',
    }
    plain = {"question": "What?", "answers": "Blue", "provenance": {"rollout": {"loop": "os:system"}, "source": "x"}}
    first, second = read_tasks(written(tmp_path / "tasks.jsonl", exported, plain))
    assert (first.formula, first.hops, first.proofs) == ((("C@x", "r", "?"),), 2, {"easy": False})
    assert (second.answers, second.environment) == (("Blue",), "search")
    assert second.provenance == {"source": "x"}, "rows from outside say nothing of what runs them"


GOOD = {"question": "Q?", "answers": ["a"], "key": "k"}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([GOOD, "{"], "row 2 of .* is not valid JSON"),
        ([{"answers": ["a"]}], "row 1 of .* has no text under question"),
        ([{"question": "Q?"}], "no list of strings under answers"),
        ([GOOD, GOOD], "row 2 of .* has the key 'k' of an earlier row"),
        ([{**GOOD, "key": "k\x00"}], "row 1 of .*: the key .* contains a NUL character"),
        ([{**GOOD, "formula": [["a", "b"]]}], "row 1 of .*: formula .*not a triple of strings"),
        ([""], "has no rows"),
    ],
)
def test_a_broken_row_is_reported_with_its_place(tmp_path: Path, rows: list[Any], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        read_tasks(written(tmp_path / "tasks.jsonl", *rows))


def test_an_absent_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"none\.jsonl"):
        read_gsm8k(tmp_path / "none.jsonl")
    with pytest.raises(RequestError, match="no number after ####"):
        read_gsm8k(written(tmp_path / "test.jsonl", {"question": "Q", "answer": "18"}))


@pytest.mark.slow
@needs("math_gsm8k", "code_humaneval", "code_mbpp_sanitized", "multihop_musique")
def test_the_real_sets_are_read_whole() -> None:
    assert len(read_gsm8k(DATA / "math_gsm8k" / "test.jsonl")) == 1319
    assert len(read_humaneval(DATA / "code_humaneval" / "HumanEval.jsonl.gz")) == 164
    assert len(read_mbpp(DATA / "code_mbpp_sanitized" / "test.jsonl")) == 257
    tasks, documents = read_musique(DATA / "multihop_musique")
    assert (len(tasks), len(documents), {task.hops for task in tasks}) == (100, 1890, {2, 3, 4})
