"""Pairs on which math-verify and lighteval test themselves, `math_verify_cases.jsonl`; their sources stand in `math_verify_cases.md`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from eval.graders.mathematics import Extraction
from eval.graders.rows import verify_rows
from warehouse.records import Outcome

Case = dict[str, Any]
CASES: list[Case] = [json.loads(line) for line in Path(__file__).with_name("math_verify_cases.jsonl").read_text().splitlines()]
SUITES = sorted({case["suite"] for case in CASES})


@cache
def taken(extraction: Extraction) -> list[bool]:
    """Whether `math` takes the prediction of each case for right; a case that it cannot judge is not taken."""
    rows = [{"id": None, "gold": case["gold"], "pred": case["pred"], "options": {"extraction": extraction.value}} for case in CASES]
    return [judgement.verdict is Outcome.SUCCESS for judgement in verify_rows("math", rows)]


def positives(suite: str, extraction: Extraction) -> tuple[list[Case], int]:
    """The cases of a suite that are right and not taken, and how many are right."""
    right = [(case, passed) for case, passed in zip(CASES, taken(extraction), strict=True) if case["suite"] == suite and case["right"]]
    return [case for case, passed in right if not passed], len(right)
