"""Task sets proven from the command line: rows of a file and the tasks of a home."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flows.cli import app
from flows.verification import validate_home, validate_rows
from warehouse import Lake, Task
from warehouse.errors import RequestError


def rows_of(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def flywheel(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_sound_file_is_proven(tmp_path: Path) -> None:
    path = rows_of(tmp_path, {"id": 1, "gold": "Green Lake", "question": "Which?"}, {"id": 2, "gold": ["Oslo"]})
    done = flywheel("validate", "qa_em", "--input", path, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert (found["proven"], found["gold"]["tried"], found["negatives"]["choice"]) == (True, 2, {"tried": 2, "mistaken": 0, "examples": []})


def test_broken_rows_are_rows_that_no_one_can_judge(tmp_path: Path) -> None:
    path = rows_of(tmp_path, {"id": 1, "gold": "x1"}, {"id": 2}, {"id": 3, "gold": {"a": 1}}, {"id": 4, "gold": "x4", "options": []})
    path.write_text(path.read_text() + "nonsense\n")
    found = validate_rows("qa_em", path)
    assert (found.unjudged.mistaken, found.proven) == (3, False)


@pytest.mark.slow
def test_the_tasks_of_a_home_are_proven_each_by_its_verifier(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.add(
            [
                Task("lake", "search", "Which lake?", ("Green Lake",)),
                Task("colours", "search", "Which?", ("red", "blue"), provenance={"set": True}, split="held_out"),
                Task("sum", "code", "How much?", ("#### 18",), provenance={"verifier": "gsm8k"}),
            ]
        )
    found = validate_home(tmp_path, None, None)
    assert (found.proven, found.gold.tried) == (True, 4)
    assert validate_home(tmp_path, "held_out", None).gold.tried == 2
    with pytest.raises(RequestError, match="no tasks in the split"):
        validate_home(tmp_path, "test", None)
