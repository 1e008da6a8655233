"""Verifiers over rows: good ones judged, bad ones reported, none fatal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.graders.rows import ROW_VERIFIERS, read_rows, verify_rows
from warehouse.errors import RequestError
from warehouse.records import Outcome

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "gold", "pred", "x"]), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("kind", "gold", "pred", "options", "success"),
    [
        ("qa_em", ["red", "blue"], "Blue | red", {"set": True}, True),
        ("qa_em", ["red", "blue"], "red", {"set": True}, False),
        ("math", "9", "there are 9 of them", {"extraction": "last"}, True),
        ("math", "9", "there are 9 of them", {"extraction": "final"}, False),
    ],
)
def test_rows_with_options(kind: str, gold: Any, pred: Any, options: dict[str, Any], success: bool) -> None:
    (judgement,) = verify_rows(kind, [{"id": 1, "gold": gold, "pred": pred, "options": options}])
    assert judgement.verdict is (Outcome.SUCCESS if success else Outcome.FAILURE), judgement.error


MEANINGLESS: dict[str, list[Any]] = {
    "number": [{"relative": -1}, {"absolute": "much"}, {"tolerance": 1}],
    "date": [{"granularity": []}],
    "qa_em": [{"set": 1}],
    "math": [[1], {"extraction": "first"}],
}


@pytest.mark.parametrize("kind", MEANINGLESS)
def test_options_that_mean_nothing_are_an_error(kind: str) -> None:
    rows = [{"id": 1, "gold": "1999", "pred": "1999", "options": options} for options in MEANINGLESS[kind]]
    assert {judgement.verdict for judgement in verify_rows(kind, rows)} == {Outcome.INVALID}


BROKEN = (
    None,
    {"gold": "a", "pred": "a"},
    {"id": 1, "pred": "1"},
    {"id": 1, "gold": "1"},
    {"id": 1, "gold": [], "pred": "1"},
    {"id": 1, "gold": " ", "pred": "1"},
    {"id": 1, "gold": {"a": 1}, "pred": "1"},
    {"id": 1, "gold": "1", "pred": {"a": 1}},
    {"id": 1, "gold": "1", "pred": float("nan")},
    {"id": 1, "gold": True, "pred": "1"},
)


@pytest.mark.parametrize("kind", sorted(ROW_VERIFIERS))
def test_a_row_that_cannot_be_judged_has_an_error_and_no_value(kind: str) -> None:
    for judgement in verify_rows(kind, BROKEN):
        assert judgement.value is None and judgement.verdict is Outcome.INVALID and judgement.error


@pytest.mark.slow
@given(st.sampled_from(sorted(ROW_VERIFIERS)), st.lists(JSON_VALUES, max_size=3))
def test_no_row_is_fatal(kind: str, rows: list[Any]) -> None:
    judgements = list(verify_rows(kind, rows))
    assert len(judgements) == len(rows)
    assert all((judgement.value is None) == (judgement.error is not None) for judgement in judgements)


def test_unknown_kind_is_refused_at_once() -> None:
    with pytest.raises(RequestError, match="qa_em"):
        verify_rows("qa", [])


def test_lines_that_are_no_json_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id": 1, "gold": "a1", "pred": "a1"}\n\nnonsense\n\xff\xfe\n' + b"[" * 100_000 + b"\n" + b"1" * 5_000 + b"\n")
    first, *others = verify_rows("qa_em", read_rows(path))
    assert first.value == 1.0
    assert [(other.error or "").split(": ")[0] for other in others] == ["line 3", "line 4", "line 5", "line 6"]
