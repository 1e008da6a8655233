"""The command line without an engine: wrong requests, rows in and out, start-up time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from warehouse import Failure, Lake

FLYWHEEL = str(Path(sys.executable).parent / "flywheel")


def flywheel(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FLYWHEEL, *arguments], capture_output=True, text=True, timeout=550)


@pytest.mark.slow
def test_help_answers_at_once() -> None:
    """By the time of the processor, which other work on the machine does not lengthen."""
    before = os.times()
    assert "Example" in flywheel("--help").stdout
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 1.2, "heavy imports belong inside the commands"


def test_rows_are_judged_and_the_broken_one_has_an_error_and_no_value(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1, "gold": ["Paris"], "pred": "the Paris."}\n{"id": 2, "gold": ["Rome"], "pred": "Oslo"}\n{"id": 3}\n')
    done = flywheel("verify", "qa_em", "--input", str(rows), "--output", str(tmp_path / "scored.jsonl"))
    assert done.returncode == 0, done.stderr
    scored = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    assert [row["value"] for row in scored] == [1.0, 0.0, None]
    assert scored[2]["error"]


@pytest.mark.slow
def test_sql_prints_one_json_document_and_refuses_to_write(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.add([Failure("synth", "debris", "no name", {"line": 3})])
    asked = flywheel("sql", "SELECT kind FROM failures", "--home", str(tmp_path), "--format", "json")
    assert json.loads(asked.stdout) == [{"kind": "debris"}]
    wrong = flywheel("sql", "DELETE FROM failures", "--home", str(tmp_path))
    assert wrong.returncode == 2
    assert len(wrong.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_numbers_that_json_has_not_are_null_in_json_and_json_lines(tmp_path: Path) -> None:
    Lake(tmp_path).close()
    query = "SELECT 'nan'::DOUBLE AS x, '-inf'::DOUBLE AS y, [1.5, 'nan'::DOUBLE] AS z, 0.5::DECIMAL(3, 1) AS d"
    wanted = {"x": None, "y": None, "z": [1.5, None], "d": 0.5}
    for form, read in (("json", lambda text: json.loads(text)[0]), ("jsonl", json.loads)):
        done = CliRunner().invoke(app, ["sql", query, "--home", str(tmp_path), "--format", form])
        assert done.exit_code == 0 and read(done.stdout) == wanted


@pytest.mark.slow
def test_a_dry_run_prints_what_would_run_and_makes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    planned = json.loads(flywheel("run", "--profile", "quickstart", "--home", str(home), "--turns", "2", "--dry-run", "--json").stdout)
    assert planned["would_run"][:2] == [{"stage": name, "state": "to do"} for name in ("t0-init", "t1-synth")]
    assert planned["would_run"][-1]["stage"] == "t2-gate"
    assert len(planned["config"]) > 10 and not home.exists()
    shown = flywheel("run", "--profile", "quickstart", "--home", str(home), "--dry-run").stdout
    assert "t1-gate" in shown and "fas 8350" in shown and len(shown.splitlines()) < 20
