"""Verifiers of plain rows `{id, gold, pred, options?}`, as `flywheel verify KIND` runs them on a file.

A row that cannot be judged gets an error instead of a value and counts as *invalid*; it never stops the others and is never a zero. A
`pred` of null is an attempt without an answer, which is a failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.graders.choice import find_verifier, grader_of
from eval.graders.code import judge_row
from eval.graders.verifiers import GRADERS, MOST_READ, GradedAnswer, Grader
from warehouse.errors import RequestError
from warehouse.importers.tables import table_rows
from warehouse.records import Outcome


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict on a row: a value in [0, 1] and what was read as the answer, or an error and no value."""

    id: Any
    value: float | None
    verdict: Outcome
    error: str | None = None
    read: str | None = None


class RowError(ValueError):
    """A row that cannot be judged, with the reason."""


RowVerifier = Callable[[dict[str, Any]], GradedAnswer]
"""Row -> verdict. Raises RowError if the row cannot be judged."""


def read_rows(path: Path) -> Iterator[Any]:
    """Read the rows of a table in any format that `table_rows` reads. A broken row becomes a `RowError` with its line.

    Raises:
        RequestError: Immediately, if there is no such table.
    """
    return (row.value if row.fault is None else RowError(f"line {row.line}: {row.fault}") for row in table_rows(path))


def verify_rows(kind: str, rows: Iterable[Any]) -> Iterator[Judgement]:
    """Yield one judgement per row, in order. Raises RequestError immediately for an unknown kind."""
    judge = ROW_VERIFIERS.get(kind) or _own(kind)
    return (_judge(judge, row) for row in rows)


def _own(kind: str) -> RowVerifier:
    grader = grader_of(find_verifier(kind)) if ":" in kind else None
    if grader is None:
        known = ", ".join(sorted(ROW_VERIFIERS))
        raise RequestError(f"There is no row verifier {kind!r}: choose one of {known}, or give your own Grader as file.py:attribute.")
    return _by_grader(grader)


def _judge(verifier: RowVerifier, row: Any) -> Judgement:
    identity = row.get("id") if isinstance(row, dict) else None
    try:
        value, success, read = verifier(_checked(row))
    except ValueError as error:
        return Judgement(identity, None, Outcome.INVALID, str(error))
    return Judgement(identity, value, Outcome.SUCCESS if success else Outcome.FAILURE, read=read)


def _checked(row: Any) -> dict[str, Any]:
    if isinstance(row, RowError):
        raise row
    if not isinstance(row, dict):
        raise RowError(f"the row is a {type(row).__name__}, not an object with id, gold and pred")
    missing = [key for key in ("id", "gold", "pred") if key not in row]
    if missing:
        raise RowError(f"the row has no {' and no '.join(missing)}")
    return row


def _text(value: Any, key: str) -> str:
    if isinstance(value, str):
        return value
    finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not finite:
        raise RowError(f"{key} has {value!r:.40}, which is neither text nor a finite number")
    return str(value)


def _by_grader(grader: Grader) -> RowVerifier:
    several = grader.name == "set"

    def verify(row: dict[str, Any]) -> GradedAnswer:
        options = row.get("options") or {}
        if not isinstance(options, dict):
            raise RowError("options are not an object")
        sets = several or options.get("set") is True
        golds = _golds(row["gold"], sets)
        if row["pred"] is None:
            grader.judge("", golds, options)  # a row whose gold cannot be judged is invalid whatever the prediction
            return GradedAnswer(0.0, False, None)
        return grader.judge(_prediction(row["pred"], sets), golds, options)

    return verify


def _verify_code(row: dict[str, Any]) -> GradedAnswer:
    value, success, program = judge_row(row)
    return GradedAnswer(value, success, program and program[:MOST_READ])


def _golds(gold: Any, sets: bool) -> list[str | list[str]]:
    items = gold if isinstance(gold, list) else [gold]
    golds = [[_text(name, "gold") for name in item] if sets and isinstance(item, list) else _text(item, "gold") for item in items]
    if not any(name.strip() for item in golds for name in ([item] if isinstance(item, str) else item)):
        raise RowError("gold has no answer")
    return golds


def _prediction(pred: Any, sets: bool) -> str | list[str]:
    return [_text(item, "pred") for item in pred] if sets and isinstance(pred, list) else _text(pred, "pred")


ROW_VERIFIERS: dict[str, RowVerifier] = {name: _by_grader(grader) for name, grader in GRADERS.items()} | {"code": _verify_code}
"""Verifiers of rows by kind: answers (`eval.graders.verifiers`) and programs (`eval.graders.code`)."""
