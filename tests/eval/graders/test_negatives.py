"""No verifier takes a wrong answer for right: every negative fails, its gold passes, and no generated input breaks one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.graders.mathematics import Extraction
from eval.graders.rows import verify_rows
from eval.graders.verifiers import GRADERS
from tests.clock import processor_seconds
from tests.eval.graders.fuzzing import fuzz
from warehouse.records import Outcome

NEGATIVES = [json.loads(line) for line in (Path(__file__).parents[1] / "negatives.jsonl").read_text().splitlines()]
VECTORS = Path(__file__).with_name("vectors") / "math.jsonl"
QUICK = sorted(set(GRADERS) - {"math", "code"})


def passed(rows: list[dict[str, Any]]) -> list[tuple[Any, Any, Outcome]]:
    """The rows that are not judged a failure."""
    judged = [(row, next(verify_rows(row["kind"], [row]))) for row in rows]
    return [(row["gold"], row["pred"], judgement.verdict) for row, judgement in judged if judgement.verdict is not Outcome.FAILURE]


def test_no_negative_passes() -> None:
    assert passed([row for row in NEGATIVES if row["kind"] != "math"]) == []


@pytest.mark.parametrize("every", [pytest.param(12, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("extraction", Extraction)
def test_no_negative_of_mathematics_passes(extraction: Extraction, every: int) -> None:
    vectors = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    wrong = [{**row, "id": 0, "kind": "math"} for row in vectors if not row["right"] and "options" not in row]
    rows = [*(row for row in NEGATIVES if row["kind"] == "math"), *wrong][::every]
    assert passed([{**row, "options": {"extraction": extraction.value}} for row in rows]) == []


def test_the_golds_of_the_negatives_pass() -> None:
    rows = [{**row, "pred": row["gold"]} for row in NEGATIVES if row["kind"] != "set" and "set" not in row.get("options", {})]
    assert [row for row in rows if next(verify_rows(row["kind"], [row])).verdict is not Outcome.SUCCESS] == []


@pytest.mark.parametrize("kind", QUICK)
def test_nothing_made_up_breaks_or_stops_a_verifier(kind: str) -> None:
    check_fuzzed(kind, 200)


@pytest.mark.parametrize("kind", [*QUICK, "math"])
@pytest.mark.long
def test_nothing_made_up_breaks_or_stops_a_verifier_in_five_thousand(kind: str) -> None:
    check_fuzzed(kind, 5_000)


def check_fuzzed(kind: str, count: int) -> None:
    """Every row gets a verdict, and 99 of 100 within a second of the processor's."""
    seconds = []
    for row in fuzz(kind, count, seed=1):
        began = processor_seconds()
        (judgement,) = verify_rows(kind, [row])
        seconds.append(processor_seconds() - began)
        assert (judgement.value is None) == (judgement.verdict is Outcome.INVALID) == (judgement.error is not None)
    assert sorted(seconds)[count * 99 // 100] < 1
