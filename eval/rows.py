"""Verifiers over plain rows `{id, gold, pred, options?}`: what `flywheel verify KIND` does with a file.

A row that cannot be judged gets an error and no value, and is counted *invalid*; it never stops the others and is never a
zero. A `pred` of null is an attempt without an answer, which is a failure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.answers import exact_match, f1, set_scores
from eval.code import judge_row
from eval.numbers import same_number
from warehouse.errors import RequestError
from warehouse.records import Outcome


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one row: a value in [0, 1], or an error and no value."""

    id: Any
    value: float | None
    verdict: Outcome
    error: str | None = None


class RowError(ValueError):
    """Why one row cannot be judged."""


RowVerifier = Callable[[dict[str, Any]], tuple[float, bool]]
"""row -> (value, success). Raises RowError where the row cannot be judged."""


def read_rows(path: Path) -> Iterator[Any]:
    """The rows of a JSONL file, blank lines left out; a line that is no JSON comes as a `RowError` that names the line.

    Raises:
        RequestError: at once where there is no such file.
    """
    if not path.is_file():
        raise RequestError(f"There is no file {path}: give a JSONL file with one row {{id, gold, pred}} a line.")
    return _rows(path)


def _rows(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _parse(line, number)


def verify_rows(kind: str, rows: Iterable[Any]) -> Iterator[Judgement]:
    """One judgement for each of `rows`, in their order; `RequestError` at once for an unknown kind."""
    if kind not in ROW_VERIFIERS:
        raise RequestError(f"There is no verifier {kind!r}: choose one of {', '.join(sorted(ROW_VERIFIERS))}.")
    return (_judge(ROW_VERIFIERS[kind], row) for row in rows)


def _judge(verifier: RowVerifier, row: Any) -> Judgement:
    identity = row.get("id") if isinstance(row, dict) else None
    try:
        value, success = verifier(_checked(row))
    except ValueError as error:
        return Judgement(identity, None, Outcome.INVALID, str(error))
    return Judgement(identity, value, Outcome.SUCCESS if success else Outcome.FAILURE)


def _checked(row: Any) -> dict[str, Any]:
    if isinstance(row, RowError):
        raise row
    if not isinstance(row, dict):
        raise RowError(f"the row is a {type(row).__name__}, not an object with id, gold and pred")
    missing = [key for key in ("id", "gold", "pred") if key not in row]
    if missing:
        raise RowError(f"the row has no {' and no '.join(missing)}")
    return row


def _parse(line: bytes, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return RowError(f"line {number} is not JSON: {error}")


def _text(value: Any, key: str) -> str:
    if isinstance(value, str):
        return value
    finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not finite:
        raise RowError(f"{key} holds {value!r:.40}, which is neither text nor a finite number")
    return str(value)


def _golds(row: dict[str, Any]) -> list[str]:
    gold = row["gold"]
    golds = [_text(item, "gold") for item in (gold if isinstance(gold, list) else [gold])]
    if not any(item.strip() for item in golds):
        raise RowError("gold holds no answer")
    return golds


def _exact_match(row: dict[str, Any]) -> tuple[float, bool]:
    golds = _golds(row)
    matched = row["pred"] is not None and exact_match(_text(row["pred"], "pred"), golds)
    return float(matched), matched


def _f1(row: dict[str, Any]) -> tuple[float, bool]:
    golds = _golds(row)
    value = 0.0 if row["pred"] is None else f1(_text(row["pred"], "pred"), golds)
    return value, value >= 1.0


def _gsm8k(row: dict[str, Any]) -> tuple[float, bool]:
    golds = _golds(row)
    prediction = "" if row["pred"] is None else _text(row["pred"], "pred")
    same = any(same_number(prediction, gold) for gold in golds)
    return float(same), same


def _set(row: dict[str, Any]) -> tuple[float, bool]:
    golds = _golds(row)
    prediction = [] if row["pred"] is None else row["pred"]
    predictions = [_text(item, "pred") for item in (prediction if isinstance(prediction, list) else [prediction])]
    scores = set_scores(predictions, golds)
    return scores.f1, scores.exact


ROW_VERIFIERS: dict[str, RowVerifier] = {"qa_em": _exact_match, "qa_f1": _f1, "gsm8k": _gsm8k, "set": _set, "code": judge_row}
"""Verifiers by kind. `qa_em` and `gsm8k` give 0 or 1, `qa_f1` the best F1 and `set` the F1 of the sets (success: exact)."""
