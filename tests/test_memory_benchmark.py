"""The benchmark of memory: which rows a file of results keeps, and the table of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import evidence
from benchmarks.memory import keep


def row(tokens: int, attention: str, mib: int, **settings: Any) -> dict[str, Any]:
    bare = {"layers": None, "bfloat16": False, "checkpointing": False, "critic": False, "planned": 250 * 2**20}
    return {"policy": "/somewhere", "tokens": tokens, "attention": attention, "measured": mib * 2**20, **bare, **settings}


def test_a_row_takes_the_place_of_that_of_the_same_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    keep("one", [row(1024, "varlen", 9), row(1024, "sdpa", 400), row(512, "varlen", 100, layers=2)], ["first"])
    keep("one", [row(1024, "varlen", 200), row(512, "varlen", 500, bfloat16=True, checkpointing=True)], ["first", "second"])
    kept = evidence.load("one")
    assert len(kept["rows"]) == 4 and kept["commands"] == ["first", "second"]
    assert not any("policy" in each for each in kept["rows"]), "a folder of one machine tells nobody anything"
    text = evidence.filled("<!-- evidence: peaks one -->\n\n<!-- /evidence -->")
    assert "| 1,024 | all layers, float32 | 250 | 200 | 1.25 | 400 |" in text
    assert "| 512 | all layers, bfloat16, checkpointing | 250 | 500 | 0.50 |  |" in text
    whole = evidence.filled("<!-- evidence: peaks one whole -->\n\n<!-- /evidence -->")
    assert "| 1,024 | all" in whole and "2 layers" not in whole
    few = evidence.filled("<!-- evidence: peaks one 2 -->\n\n<!-- /evidence -->")
    assert "| 512 | 2 layers, float32 | 250 | 100 | 2.50 |  |" in few and "1,024" not in few
