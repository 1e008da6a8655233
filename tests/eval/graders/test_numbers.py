"""GSM8K's rule for the final number."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from eval.graders.numbers import final_number, same_number

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "math_gsm8k" / "test.jsonl"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He buys 3.\n#### 1,234", "1234"),
        ("#### 5\n#### 7 apples of 9", "7"),
        ("Q: 2+2? A: 4 of 10", "4"),
        ("The Answer is: $18.50.", "18.50"),
        ("the answer is unknown, perhaps 12", "12"),
        ("3 dogs and 4 cats", "4"),
        ("#### none, although 3", "3"),
        ("16 - 3 = 13", "13"),
        ("5 - 3 = 2", "2"),
        ("it fell to -5", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("\u22127", "-7"),
        ("DNA: 9", "9"),
        ("about .5", "0.5"),
        ("so ...5", "5"),
        ("1e3", "1000"),
        ("\\boxed{42}", "42"),
    ],
)
def test_final_number(text: str, expected: str) -> None:
    assert final_number(text) == Decimal(expected)


@pytest.mark.parametrize("text", ["", "none", "x2", "v1.2", "NaN", "inf"])
def test_no_number(text: str) -> None:
    assert final_number(text) is None


def test_same_number_is_exact() -> None:
    assert same_number("#### 18.0", "18")
    assert not same_number("#### 18.01", "18")
    assert not same_number("no idea", "18")
    with pytest.raises(ValueError, match="no number"):
        same_number("18", "eighteen")


@pytest.mark.skipif(not GSM8K.is_file(), reason="../shared/data/math_gsm8k is absent")
def test_every_reference_ends_on_its_own_number() -> None:
    answers = [json.loads(line)["answer"] for line in GSM8K.read_text().splitlines()]
    assert len(answers) == 1319
    assert all(final_number(answer) == Decimal(answer.split("####")[1].replace(",", "")) for answer in answers)
