"""What leaves the lake is what is in it, and upkeep changes neither the present nor the past."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from warehouse import Lake, Metric, RequestError, Task, Trajectory
from warehouse.exporters.dataset import export_database, export_table
from warehouse.importers.tasks import TaskFormat, read_tasks
from warehouse.upkeep import compact

pytestmark = pytest.mark.slow

MakeTrajectory = Callable[..., Trajectory]


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_a_table_as_json_has_no_number_that_json_lacks(suffix: str, lake: Lake, make_trajectory: MakeTrajectory, tmp_path: Path) -> None:
    run = make_trajectory("t", 1)
    unsure = replace(run.turns[0], action_logprobs=(-0.5, -math.inf, math.nan))
    metrics = [Metric("r", "rl", 1, step, "loss", value) for step, value in enumerate((1.5, math.nan, math.inf))]
    lake.add([replace(run, turns=(unsure,)), *metrics])
    found = {}
    for name in ("metrics", "turns"):
        export_table(lake, name, tmp_path / f"{name}.{suffix}")
        text = (tmp_path / f"{name}.{suffix}").read_text()
        assert "NaN" not in text and "Infinity" not in text
        found[name] = json.loads(text) if suffix == "json" else [json.loads(line) for line in text.splitlines()]
    assert [row["value"] for row in found["metrics"]] == [1.5, None, None]
    assert found["turns"][0]["action_logprobs"] == [-0.5, None, None]


def test_lists_in_csv_are_json_and_are_read_back(lake: Lake, tmp_path: Path) -> None:
    answers = ("Oslo, Norway", 'the "Big" one', "O'Neil")
    lake.add([Task("t1", "search", "Where?", answers, formula=(("a", "r", "?"),)), Task("t2", "search", "Who?", ("Ann",))])
    export_table(lake, "tasks", tmp_path / "tasks.csv")
    with (tmp_path / "tasks.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert json.loads(row["answers"]) == list(answers) and json.loads(row["formula"]) == [["a", "r", "?"]]
    read = read_tasks(tmp_path / "tasks.csv", TaskFormat("mine", "search", "qa_em")).records
    assert [task.answers for task in read if isinstance(task, Task)] == [answers, ("Ann",)]


def test_requests_that_cannot_be_met(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("kept")
    wrong = (("nothing", "a.csv", "'nothing'"), ("turns", "a.xml", "a.xml .*suffix"), ("turns", "there.csv", "there.csv already exists"))
    for name, file, told in wrong:
        with pytest.raises(RequestError, match=told):
            export_table(lake, name, tmp_path / file)
    assert (tmp_path / "there.csv").read_text() == "kept"


def test_the_whole_lake_as_one_duckdb_file(lake: Lake, make_trajectory: MakeTrajectory, tmp_path: Path) -> None:
    lake.add([Task("t1", "search", "?", ("a",)), *(make_trajectory(f"{number}", stage="eval", suite="s") for number in range(30))])
    export_database(lake, tmp_path / "all.duckdb")
    with duckdb.connect(str(tmp_path / "all.duckdb"), read_only=True) as exported:
        assert exported.execute("SELECT count(*), len(any_value(action_ids)) FROM turns").fetchall() == [(60, 3)]
        assert exported.execute("SELECT success FROM evaluations WHERE hops IS NULL").fetchall() == [(1.0,)]


def test_compaction_keeps_rows_and_snapshots(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    for batch in range(4):
        lake.add([make_trajectory(f"{batch}-{number}") for number in range(12)])
    middle = lake.snapshot() - 2
    before = lake.trajectories()
    compact(lake)
    assert lake.trajectories() == before and len(before) == 48
    assert len(lake.trajectories(at=middle)) == 24
    (files,) = lake.query("SELECT file_count FROM ducklake_table_info('lake') WHERE table_name = 'trajectories'").to_pylist()
    assert files == {"file_count": 1}
