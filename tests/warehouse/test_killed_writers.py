"""Writers killed at random moments: every batch that was committed is there whole, and none is there in part."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warehouse.killed_writers import ROWS
from warehouse import Lake

ROOT = Path(__file__).resolve().parents[2]
COUNTS = """
SELECT regexp_replace(t.id, '-[0-9]+$', '') AS batch, count(*) AS trajectories, count(DISTINCT t.id) AS ids, sum(u.n) AS turns,
    sum(s.n) AS scores
FROM trajectories t
LEFT JOIN (SELECT trajectory_id AS id, count(*) AS n FROM turns GROUP BY ALL) u USING (id)
LEFT JOIN (SELECT trajectory_id AS id, count(*) AS n FROM scores GROUP BY ALL) s USING (id)
GROUP BY ALL
"""


@pytest.mark.parametrize("kills", [pytest.param(8, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.long)])
def test_a_killed_writer_leaves_whole_batches_or_none(tmp_path: Path, kills: int) -> None:
    with Lake(tmp_path / "home"):
        pass
    log = tmp_path / "log"
    command = [sys.executable, "-m", "tests.warehouse.killed_writers", str(tmp_path / "home"), str(log), str(kills), "7"]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
    lines = log.read_text().splitlines()
    begun, committed = ({line[2:] for line in lines if line[0] == sign} for sign in "?=")
    with Lake(tmp_path / "home") as lake:
        batches = {row["batch"]: (row["trajectories"], row["ids"], row["turns"], row["scores"]) for row in lake.query(COUNTS).to_pylist()}
        lake.add([])
    assert set(batches.values()) == {(ROWS,) * 4}
    assert committed <= set(batches) <= begun
    assert len(committed) >= kills / 4 and begun - committed, "too few commits, or no kill that hit one"
