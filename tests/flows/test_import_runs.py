"""Foreign runs through the command's own function: counts, reasons, and twice is once."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.data.imports import import_file
from warehouse import Lake

DATA = Path(__file__).parents[3] / "shared" / "data" / "trajectories"
real = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there")


@pytest.mark.slow
@real
def test_the_released_runs_are_imported_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for form, rows, tasks in (("webdancer", 120, 107), ("fireact", 965, 500)):
        first, second = (import_file(form, DATA / form, home) for _ in range(2))
        assert (first["rows"], first["quarantined"], first["reasons"]) == (rows, 0, {})
        demonstrations = {"demonstrations": 120} if form == "webdancer" else {}
        assert first["trajectories"] == {"read": rows, "new": rows, **demonstrations}
        assert first["tasks"] == {"read": tasks, "new": tasks}
        assert [second[table]["new"] for table in ("trajectories", "tasks")] == [0, 0]
    with Lake(home, read_only=True) as lake:
        sql = """SELECT t.policy, count(*) AS n, count(*) FILTER (o.outcome = 'success') AS s
            FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id GROUP BY ALL ORDER BY 1"""
        assert [tuple(row.values()) for row in lake.query(sql).to_pylist()] == [
            ("hotpotqa_dev500_gpt35_ft", 465, 200), ("hotpotqa_dev500_llama2_7b", 500, 131), ("webdancer", 120, 0)
        ]  # fmt: skip
        assert lake.query("SELECT count(*) AS n FROM tasks WHERE split = 'train'").to_pylist() == [{"n": 0}]
