"""Rows of every kind of table are the same rows, and what is broken of one is a fault of its row alone."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from warehouse.errors import RequestError
from warehouse.importers.tables import name_of, table_rows

ROWS = [{"question": "One, «two»\nor three?", "answer": "two"}, {"question": 'Say "yes".', "answer": "yes"}]


def write_lines(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n\n" for row in ROWS), encoding="utf-8")


def write_list(path: Path) -> None:
    path.write_text(json.dumps(ROWS, indent=1))


def write_packed(path: Path) -> None:
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))


def write_cells(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["question", "answer"], delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(ROWS)


def write_parquet(path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist(ROWS), path)


WRITERS: dict[str, Callable[[Path], None]] = {
    "rows.jsonl": write_lines, "rows.json": write_list, "rows.jsonl.gz": write_packed, "rows.csv": write_cells, "rows.tsv": write_cells,
    "rows.parquet": write_parquet,
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_has_the_same_rows(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    assert [row.value for row in table_rows(tmp_path / name)] == ROWS
    assert name_of(tmp_path / name) == "rows"


def test_a_broken_row_is_a_fault_with_its_line_and_the_next_is_read(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('question,answer\nalone\n"two\nlines",x\n"a" b,y\nlast,z\n')
    found = [(row.line, row.value, row.fault) for row in table_rows(tmp_path / "rows.csv")]
    assert found[0] == (2, None, "1 cells where the header has 2")
    assert found[1] == (3, {"question": "two\nlines", "answer": "x"}, None)
    assert found[2][0] == 5 and found[2][2]
    assert found[3] == (6, {"question": "last", "answer": "z"}, None)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("rows.xlsx", b"", "of no format that is known; name a .json"),
        ("rows.parquet", b"PAR", "is not a table in Parquet"),
        ("rows.jsonl.gz", b"\x1f\x8b\x08", "cannot be unpacked"),
        ("folder", None, "is none that `datasets` has saved"),
        ("missing.jsonl", b"", "there is no file"),
    ],
)
def test_what_is_not_a_table_is_refused(name: str, content: bytes | None, reason: str, tmp_path: Path) -> None:
    if content is None:
        (tmp_path / name).mkdir()
    elif not name.startswith("missing"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match=reason):
        list(table_rows(tmp_path / name))
