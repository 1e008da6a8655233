"""Normalisation and comparison of short answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.graders.answers import exact_match, f1, normalize, set_scores, split_items, squad_match, sub_match
from eval.graders.text import fold

FIREACT = Path(__file__).parents[4] / "shared" / "data" / "trajectories" / "fireact"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The  Green Lake. ", "green lake"),
        ("A.B.C.", "abc"),
        ("An apple, a pear & the plum", "apple pear plum"),
        ("the-end", "theend"),  # punctuation goes before articles, as in SQuAD: «the-end» is one word then
        ("theatre", "theatre"),
        ("The The", "the the"),
        ("!!!", "!!!"),
        (" \n", ""),
    ],
)
def test_normalize(text: str, expected: str) -> None:
    assert normalize(text) == expected


def test_emptiness_matches_nothing() -> None:
    assert not exact_match("", [""])
    assert not exact_match("the", ["a"])
    assert f1("", [""]) == 0.0
    assert not sub_match("anything", [" "])


@given(st.text(max_size=12), st.text(max_size=12))
def test_an_exact_match_is_one_of_squad_too_once_both_are_folded(prediction: str, gold: str) -> None:
    assert not exact_match(prediction, [gold]) or squad_match(fold(prediction), [fold(gold)])


@pytest.mark.parametrize(
    ("one", "other"), [("1,234", "1234"), ("U.S.", "US"), ("$5", "5"), ("July 4, 1776", "July 4 1776"), ("the 5.", "5")]
)
def test_what_stripping_rightly_makes_equal(one: str, other: str) -> None:
    assert exact_match(one, [other]) and exact_match(other, [one])


def test_lists() -> None:
    assert split_items(" red ;; blue | ") == ["red", "blue"]
    assert split_items("AC; DC | Oslo", ["AC; DC"]) == ["AC; DC", "Oslo"]
    assert split_items("a; b | c", ["x; y", "x | y"]) == ["a; b | c"]


def test_aliases_of_an_item_are_one_item() -> None:
    golds = [["New York", "NYC"], "Oslo"]
    assert set_scores(["nyc", "oslo"], golds).exact
    both = set_scores(["nyc", "New York"], golds)
    assert (both.precision, both.recall, both.exact) == (1.0, 0.5, False)


def test_any_accepted_answer_counts() -> None:
    assert exact_match("NYC", ["New York", "nyc"])
    assert f1("York City", ["London", "New York City"]) == pytest.approx(0.8)


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
