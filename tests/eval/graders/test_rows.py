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
    ("kind", "gold", "pred", "value", "verdict"),
    [
        ("qa_em", ["Green Lake", "GL"], "the green lake", 1.0, Outcome.SUCCESS),
        ("qa_em", "Green Lake", "Green Lake or Blue Lake", 0.0, Outcome.FAILURE),
        ("qa_em", 1984, "1984", 1.0, Outcome.SUCCESS),
        ("qa_em", "Green Lake", None, 0.0, Outcome.FAILURE),
        ("qa_f1", "Green Lake", "Green", 2 / 3, Outcome.FAILURE),
        ("qa_f1", "Green Lake", "lake green", 1.0, Outcome.FAILURE),
        ("gsm8k", "so\n#### 18", "The answer is $18.", 1.0, Outcome.SUCCESS),
        ("gsm8k", 18, "#### 81", 0.0, Outcome.FAILURE),
        ("gsm8k", "#### 18", None, 0.0, Outcome.FAILURE),
        ("set", ["a1", "b1"], ["B1", "a1"], 1.0, Outcome.SUCCESS),
        ("set", ["a1", "b1"], ["b1"], 2 / 3, Outcome.FAILURE),
        ("set", ["a1"], None, 0.0, Outcome.FAILURE),
    ],
)
def test_rows_are_judged(kind: str, gold: Any, pred: Any, value: float, verdict: Outcome) -> None:
    (judgement,) = verify_rows(kind, [{"id": 1, "gold": gold, "pred": pred}])
    assert (judgement.id, judgement.value, judgement.verdict, judgement.error) == (1, pytest.approx(value), verdict, None)


@pytest.mark.parametrize(
    ("kind", "gold", "pred", "options", "success"),
    [
        ("number", "100", "101", {"relative": 0.01}, True),
        ("number", "100", 101, {}, False),
        ("number", "5 km", "5.4", {"absolute": 0.5}, True),
        ("number", "1/2", "0.5", {}, True),
        ("date", "20 July 1969", "July 1969", {"granularity": "month"}, True),
        ("date", "20 July 1969", "1969-07-20", {}, True),
        ("qa_em", ["red", "blue"], "Blue | red", {"set": True}, True),
        ("qa_em", ["red", "blue"], "red", {"set": True}, False),
        ("qa_em", ["red", "blue"], "red", {}, True),
        ("set", [["New York", "NYC"], "Oslo"], ["oslo", "nyc"], {}, True),
        ("set", ["AC; DC", "Oslo"], "AC; DC | Oslo", {}, True),
        ("math", "0.5", "\\boxed{1/2}", {}, True),
        ("math", "9", "there are 9 of them", {"extraction": "last"}, True),
        ("math", "9", "there are 9 of them", {"extraction": "final"}, False),
        ("squad_em", "50%", "50", {}, True),
        ("squad_em", "10:30", "10-30", {}, True),
        ("squad_em", "Green Lake", "the green lake!", {}, True),
        ("squad_em", "Green Lake", "Green Lakes", {}, False),
        ("squad_em", "O'Neill", "O’Neill", {}, False),
    ],
)
def test_rows_with_options(kind: str, gold: Any, pred: Any, options: dict[str, Any], success: bool) -> None:
    (judgement,) = verify_rows(kind, [{"id": 1, "gold": gold, "pred": pred, "options": options}])
    assert judgement.verdict is (Outcome.SUCCESS if success else Outcome.FAILURE), judgement.error


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("number", {"relative": -1}),
        ("number", {"absolute": "much"}),
        ("number", {"relative": float("inf")}),
        ("number", {"tolerance": 1}),
        ("date", {"granularity": "week"}),
        ("date", {"granularity": []}),
        ("qa_em", {"set": 1}),
        ("gsm8k", {"set": True}),
        ("math", [1]),
        ("math", {"extraction": "first"}),
        ("math", {"extraction": []}),
    ],
)
def test_options_that_mean_nothing_are_an_error(kind: str, options: Any) -> None:
    (judgement,) = verify_rows(kind, [{"id": 1, "gold": "1999", "pred": "1999", "options": options}])
    assert judgement.verdict is Outcome.INVALID


@pytest.mark.parametrize("kind", sorted(ROW_VERIFIERS))
@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {"gold": "a", "pred": "a"},
        {"id": 1, "pred": "1"},
        {"id": 1, "gold": "1"},
        {"id": 1, "gold": [], "pred": "1"},
        {"id": 1, "gold": " ", "pred": "1"},
        {"id": 1, "gold": {"a": 1}, "pred": "1"},
        {"id": 1, "gold": "1", "pred": {"a": 1}},
        {"id": 1, "gold": "1", "pred": float("nan")},
        {"id": 1, "gold": True, "pred": "1"},
    ],
)
def test_a_row_that_cannot_be_judged_has_an_error_and_no_value(kind: str, row: Any) -> None:
    (judgement,) = verify_rows(kind, [row])
    assert judgement.value is None
    assert judgement.verdict is Outcome.INVALID
    assert judgement.error


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


def test_rows_may_stand_in_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,gold,pred\n1,a1,a1\n2,a1\n3,a1,a3\n")
    judgements = list(verify_rows("qa_em", read_rows(tmp_path / "rows.csv")))
    assert [judgement.value for judgement in judgements] == [1.0, None, 0.0]
    assert (judgements[1].error or "").startswith("line 3: ")
    (tmp_path / "rows.toml").write_text("")
    with pytest.raises(RequestError, match="is of no format that is known"):
        read_rows(tmp_path / "rows.toml")
