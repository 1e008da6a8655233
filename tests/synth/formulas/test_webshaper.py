"""The released form: what is read, what is quarantined and why, and that good rows come back as they were."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.formulas.triples import validate
from synth.formulas.webshaper import Unreadable, parse_formalization, print_formalization, read_rows, task_of, write_rows
from tests.real_data import DATA, needs
from warehouse import Lake

SAMPLE = DATA / "webshaper_sample" / "webshaper.100.jsonl"
GOOD: dict[str, Any] = {
    "id": "1",
    "question": "Who?",
    "answer": "Ann",
    "formalization": [["V@X", "r", "?"], ["V@X", "s", "C@a"]],
    "urls": ["u"],
}


def row(**changes: Any) -> str:
    return json.dumps({name: value for name, value in (GOOD | changes).items() if value is not ...}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("{not json", "json"),
        ('{"answer": NaN}', "json"),
        ("[" * 100_000, "json"),
        (row(question=...), "field"),
        (row(formalization="V@X"), "field"),
        (row(formalization=[["V@X", "r"], ["V@X", "s", "?"]]), "arity"),
        (row(formalization=[["V@X", "r", "?"], ["V@Y", "s", "C@a"]]), "disconnected"),
        (row(formalization=[["V@X & V@Y", "r", "C@a & C@b & C@c"], ["V@X", "r", "?"]]), "packing"),
    ],
)
def test_a_bad_row_is_quarantined_with_its_reason_and_its_line(tmp_path: Path, line: str, kind: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{row()}\n\n{line}\n{row(id='2')}\n")
    rows, (failure,) = read_rows(file)
    assert [read.fields["id"] for read in rows] == ["1", "2"]
    assert (failure.stage, failure.kind, failure.item["line"], failure.item["row"]) == ("import", kind, 3, line)


def test_packed_entries_are_triples_of_their_own_and_packed_again() -> None:
    entries = [
        ["V@S", "is a & part of", "C@stage & V@T"],
        ["?", "r", "V@S & V@T"],
        ["V@Y", "published_by", "C@Taylor & Francis"],
        ["V@Y", "war & peace of", "?"],
    ]
    formula, packing = parse_formalization(entries)
    assert formula == (
        ("V@S", "is a", "C@stage"),
        ("V@S", "part of", "V@T"),
        ("?", "r", "V@S"),
        ("?", "r", "V@T"),
        ("V@Y", "published_by", "C@Taylor & Francis"),
        ("V@Y", "war & peace of", "?"),
    )
    assert print_formalization(formula, packing) == entries


nodes = st.lists(st.sampled_from(["V@X", "?", "C@a", "C@a | b", "C@a & co"]), min_size=1, max_size=3).map(" & ".join)
relations = st.lists(st.sampled_from(["r", "s t"]), min_size=1, max_size=3).map(" & ".join)


@given(st.lists(st.tuples(nodes, relations, nodes).map(list), min_size=1, max_size=4))
def test_what_can_be_read_is_printed_as_it_was(entries: list[list[str]]) -> None:
    try:
        formula, packing = parse_formalization(entries)
    except Unreadable:
        return
    assert print_formalization(formula, packing) == entries
    assert validate(formula, constants_connect=True) == []


@pytest.mark.slow
def test_fields_of_others_and_their_order_survive(tmp_path: Path) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    file.write_text(json.dumps({"level": 3, "source": {"a": [1.5]}, **{k: v for k, v in GOOD.items() if k not in ("id", "urls")}}) + "\n")
    with Lake(tmp_path) as lake:
        lake.add([task_of(read) for read in read_rows(file)[0]])
        write_rows(lake.tasks(), out)
    assert out.read_text() == file.read_text()


@needs("webshaper_sample/webshaper.100.jsonl")
@pytest.mark.slow
def test_every_valid_row_of_the_released_sample_comes_back_equal(tmp_path: Path) -> None:
    rows, failures = read_rows(SAMPLE)
    assert Counter(failure.kind for failure in failures) == {"arity": 10, "prefix": 6, "disconnected": 1}
    lines = SAMPLE.read_text().splitlines()
    with Lake(tmp_path) as lake:
        lake.add([task_of(read) for read in rows])
        write_rows(lake.tasks(), tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text().splitlines() == [lines[read.line - 1] for read in rows]
    assert len(rows) == 83
