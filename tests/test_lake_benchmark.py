"""The benchmark of the lake: views that are named alone are read, and figures of several commands stand beside each other."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from benchmarks.evidence_tables import lake_ingest, lake_views
from benchmarks.lake import beside, counts, ingest, views


@pytest.mark.slow
def test_a_small_lake_is_filled_and_read(tmp_path: Path) -> None:
    log = io.StringIO()
    figures = beside({}, {"ingest": ingest(tmp_path, 200, log), "counts": counts(tmp_path)})
    assert figures["counts"]["trajectories"] == 200 and counts(tmp_path)["trajectories"] == 0
    figures = beside(figures, {"views": views(tmp_path, 3, ["outcomes", "cost"], log)})
    assert figures["ingest"]["trajectories"] == 200 and figures["ingest"]["ratio"] > 0
    assert {name: row["reads"] for name, row in figures["views"]["views"].items()} == {"outcomes": 3, "cost": 3}
    again = beside(figures, {"views": views(tmp_path, 1, ["cost"], log)})
    assert {name: row["reads"] for name, row in again["views"]["views"].items()} == {"outcomes": 3, "cost": 1}
    assert again["ingest"] == figures["ingest"] and "200 trajectories" in lake_ingest(again)


def test_the_quick_ones_share_a_line_and_the_slowest_is_last() -> None:
    row = {"rows": 5_000, "reads": 21, "median": 0.1, "p95": 0.1, "cpu": 0.1}
    read = {
        "slow": row | {"p95": 2.0, "median": 1.5, "reads": 1},
        "cost": row,
        "lineage": row | {"p95": 0.15},
        "outcomes": row | {"p95": 0.5},
    }
    lines = lake_views({"views": {"views": read}}).splitlines()[2:]
    assert lines == [
        "| `cost`, `lineage` | to 5,000 | to 0.10 | to 0.15 | 21 |",
        "| `outcomes` | 5,000 | 0.10 | 0.50 | 21 |",
        "| `slow` | 5,000 | 1.50 | 2.00 | 1 |",
    ]
