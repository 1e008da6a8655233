"""Pairs on which math-verify and lighteval test themselves, `math_verify_cases.jsonl`; their sources are in `math_verify_cases.md`."""

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
def taken(extraction: Extraction, every: int = 1) -> list[bool]:
    """Whether `math` takes the prediction of each case for right, of all or of one in `every`; one that it cannot judge is not taken."""
    options = {"extraction": extraction.value}
    rows = [{"id": None, "gold": case["gold"], "pred": case["pred"], "options": options} for case in CASES[::every]]
    return [judgement.verdict is Outcome.SUCCESS for judgement in verify_rows("math", rows)]
