"""GSM8K's rule for the final number."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from eval.graders.numbers import final_number, same_number

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "math_gsm8k" / "test.jsonl"


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
