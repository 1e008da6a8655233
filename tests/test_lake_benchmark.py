"""The benchmark of the lake: only the named views are read, and figures of several commands are kept together."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from benchmarks.evidence_tables import lake_ingest
from benchmarks.lake import counts, ingest, merged, views


@pytest.mark.long
def test_a_small_lake_is_filled_and_read(tmp_path: Path) -> None:
    log = io.StringIO()
    figures = merged({}, {"ingest": ingest(tmp_path, 40, log), "counts": counts(tmp_path)})
    assert figures["counts"]["trajectories"] == 40 and counts(tmp_path)["trajectories"] == 0
    figures = merged(figures, {"views": views(tmp_path, 3, ["outcomes", "cost"], log)})
    assert figures["ingest"]["trajectories"] == 40 and figures["ingest"]["ratio"] > 0
    assert {name: row["reads"] for name, row in figures["views"]["views"].items()} == {"outcomes": 3, "cost": 3}
    again = merged(figures, {"views": views(tmp_path, 1, ["cost"], log)})
    assert {name: row["reads"] for name, row in again["views"]["views"].items()} == {"outcomes": 3, "cost": 1}
    assert again["ingest"] == figures["ingest"] and "40 trajectories" in lake_ingest(again)
