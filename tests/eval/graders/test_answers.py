"""Short answers, numbers and dates: what is read and what equals what."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.graders.answers import exact_match, f1, set_scores, squad_match, sub_match
from eval.graders.dates import Granularity, same_date
from eval.graders.numbers import final_number
from eval.graders.text import fold
from tests.real_data import DATA, needs

FIREACT = DATA / "trajectories" / "fireact"


def test_emptiness_matches_nothing() -> None:
    assert not exact_match("", [""]) and not exact_match("the", ["a"])
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


@needs("trajectories/fireact")
def test_fireact_scores_are_reproduced() -> None:
    for path in sorted(FIREACT.glob("*.json")):
        for row in json.loads(path.read_text()).values():
            if row["pred"] is None:
                continue
            assert squad_match(row["pred"], [row["gt"]]) == row["em"], row
            assert f1(row["pred"], [row["gt"]]) == pytest.approx(float(row["f1"])), row


GSM8K = DATA / "math_gsm8k" / "test.jsonl"


@needs("math_gsm8k")
def test_every_reference_ends_on_its_own_number() -> None:
    answers = [json.loads(line)["answer"] for line in GSM8K.read_text().splitlines()]
    assert len(answers) == 1319
    assert all(final_number(answer) == Decimal(answer.split("####")[1].replace(",", "")) for answer in answers)


@given(st.dates(min_value=date(1000, 1, 1)))
def test_every_way_of_writing_a_day_is_the_same_day(day: date) -> None:
    for form in ("%Y-%m-%d", "%d %B %Y", "%B %d, %Y", "%A, %d %b %Y", "%Y/%m/%d"):
        assert same_date(day.strftime(form), day.isoformat())


def test_a_gold_that_says_less_than_is_asked_is_no_gold() -> None:
    with pytest.raises(ValueError, match="has no day"):
        same_date("20 July 1969", "1969", Granularity.DAY)
    with pytest.raises(ValueError, match="not a date"):
        same_date("1969", "the sixties")
