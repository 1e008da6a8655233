"""Normalisation and comparison of short answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.graders.answers import exact_match, f1, set_scores, squad_match, sub_match
from eval.graders.text import fold

FIREACT = Path(__file__).parents[4] / "shared" / "data" / "trajectories" / "fireact"


def test_emptiness_matches_nothing() -> None:
    assert not exact_match("", [""])
    assert not exact_match("the", ["a"])
    assert f1("", [""]) == 0.0
    assert not sub_match("anything", [" "])


@settings(max_examples=40)
@given(st.text(max_size=12), st.text(max_size=12))
def test_an_exact_match_is_one_of_squad_too_once_both_are_folded(prediction: str, gold: str) -> None:
    assert not exact_match(prediction, [gold]) or squad_match(fold(prediction), [fold(gold)])


def test_sub_match_wants_whole_words() -> None:
    assert sub_match("It is the Green Lake, surely", ["green lake"])
    assert not sub_match("evergreen lakes", ["green lake"])


def test_set_scores() -> None:
    scores = set_scores(["The Red", "blue", "blue", ""], ["red", "green"])
    assert (scores.precision, scores.recall, scores.f1, scores.exact) == (0.5, 0.5, 0.5, False)
    assert set_scores(["green", "RED"], ["red", "green"]).exact
    assert set_scores([], ["red"]).precision == 0.0
    with pytest.raises(ValueError, match="empty"):
        set_scores(["red"], [])


@pytest.mark.skipif(not FIREACT.is_dir(), reason="../shared/data/trajectories/fireact is absent")
def test_fireact_scores_are_reproduced() -> None:
    for path in sorted(FIREACT.glob("*.json")):
        for row in json.loads(path.read_text()).values():
            if row["pred"] is None:
                continue
            assert squad_match(row["pred"], [row["gt"]]) == row["em"], row
            assert f1(row["pred"], [row["gt"]]) == pytest.approx(float(row["f1"])), row
