"""The benchmark of joined rows: demonstrations as trajectories of the same tokens, and what is told of them."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from benchmarks import evidence
from benchmarks.packed import as_trajectory, ratio
from rl.renderers.examples import EncodedExample
from rl.training.batches import rows_of
from warehouse import Outcome

MARKS = (False, False, True, True, False, True)


def test_a_demonstration_is_a_trajectory_of_the_same_tokens() -> None:
    found = as_trajectory(EncodedExample((1, 2, 3, 4, 5, 6), MARKS), 1)
    assert found.prompt_ids == (1, 2) and found.outcome is Outcome.SUCCESS
    assert [(turn.action_ids, turn.observation_ids) for turn in found.turns] == [((3, 4), (5,)), ((6,), ())]
    (row,) = rows_of([found], None)
    assert (*row.prompt_ids, *row.completion_ids) == (1, 2, 3, 4, 5, 6)
    assert row.action_mask == tuple(map(int, MARKS[2:]))


def test_what_follows_the_last_action_is_kept_with_it() -> None:
    found = as_trajectory(EncodedExample((1, 2, 3), (False, True, False)), 0)
    assert list(chain(*((*turn.action_ids, *turn.observation_ids) for turn in found.turns))) == [2, 3]
    assert found.outcome is Outcome.FAILURE


def test_the_tables_are_made_of_every_repeat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def row(seconds: float) -> dict[str, float]:
        return {"tokens": 1200, "seconds": seconds, "processor_seconds": seconds / 2}

    repeats = {"packed": [row(2), row(3), row(2)], "padded": [row(3), row(4), row(3)]}
    peaks = [{"attention": name, "tokens": 512, "bytes": size * 2**20} for name, size in (("packed", 300), ("padded", 400))]
    (tmp_path / "one.json").write_text(json.dumps({"speeds": {"repeats": repeats}, "peaks": peaks}))
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    text = evidence.filled("<!-- evidence: packing one -->\n\n<!-- /evidence --><!-- evidence: peaks one -->\n\n<!-- /evidence -->")
    assert ratio(repeats, "seconds") == 1.5
    assert "| the clock | 600, 400, 600 | 400, 300, 400 | 1.50 |" in text
    assert "| the processor | 1200, 800, 1200 | 800, 600, 800 | 1.50 |" in text
    assert "| 512 | 300 | 400 |" in text
