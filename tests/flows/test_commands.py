"""The command line without an engine: rows in and out, pins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.flows.homes import flywheel
from warehouse import Failure, Lake, Pin, RequestError, Task

QUERY = "SELECT key FROM tasks"


def test_rows_are_judged_and_the_broken_one_has_an_error_and_no_value(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1, "gold": ["Paris"], "pred": "the Paris."}\n{"id": 2, "gold": ["Rome"], "pred": "Oslo"}\n{"id": 3}\n')
    flywheel("verify", "qa_em", "--input", str(rows), "--output", str(tmp_path / "scored.jsonl"))
    scored = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    assert [row["value"] for row in scored] == [1.0, 0.0, None] and scored[2]["error"]


@pytest.mark.slow
def test_sql_prints_one_json_document_in_which_nan_and_infinity_are_null(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.add([Failure("synth", "debris", "no name", {"line": 3})])
    query = "SELECT kind, 'nan'::DOUBLE AS x, '-inf'::DOUBLE AS y, [1.5, 'nan'::DOUBLE] AS z, 0.5::DECIMAL(3, 1) AS d FROM failures"
    wanted = {"kind": "debris", "x": None, "y": None, "z": [1.5, None], "d": 0.5}
    assert json.loads(flywheel("sql", query, "--home", str(tmp_path), "--format", "json")) == [wanted]
    assert json.loads(flywheel("sql", query, "--home", str(tmp_path), "--format", "jsonl")) == wanted


@pytest.mark.slow
def test_pins_are_kept_listed_read_and_removed(tmp_path: Path) -> None:
    home = ("--home", str(tmp_path))
    with Lake(tmp_path) as lake:
        lake.add([Task("t1", "search", "?", ("a",))])
    made = json.loads(flywheel("lake", "pin", "first", "--query", QUERY, *home, "--json"))
    assert made["n_rows"] == 1
    with Lake(tmp_path) as lake:
        lake.add([Task("t2", "search", "?", ("a",))])
    assert json.loads(flywheel("sql", QUERY, "--at", "first", *home, "--format", "json")) == [{"key": "t1"}]
    assert "snapshots expired" in flywheel("lake", "retain", "0", *home) and "files" in flywheel("lake", "compact", *home)
    assert json.loads(flywheel("lake", "pins", *home, "--json")) == [made | {"same": True}]
    with Lake(tmp_path) as lake:
        lake.replace([replace(pin, digest="another") for pin in lake.read(Pin)])
    assert "OTHER ROWS" in flywheel("lake", "pins", *home, status=1)
    flywheel("lake", "unpin", "first", *home)
    with pytest.raises(RequestError, match="first"):
        flywheel("sql", QUERY, "--at", "first", *home)
