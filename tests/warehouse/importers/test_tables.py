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

from tests.warehouse.rows import written
from warehouse.errors import RequestError
from warehouse.importers.tables import name_of, table_rows

ROWS = [{"question": "One, «two»\nor three?", "answer": "two"}, {"question": 'Say "yes".', "answer": "yes"}]


def write_cells(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["question", "answer"], delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(ROWS)


WRITERS: dict[str, Callable[[Path], object]] = {
    "rows.jsonl": lambda path: written(path, *map(json.dumps, ROWS), ""),
    "rows.json": lambda path: path.write_text(json.dumps(ROWS, indent=1)),
    "rows.jsonl.gz": lambda path: path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode())),
    "rows.csv": write_cells,
    "rows.tsv": write_cells,
    "rows.parquet": lambda path: parquet.write_table(pa.Table.from_pylist(ROWS), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_has_the_same_rows(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    assert [row.value for row in table_rows(tmp_path / name)] == ROWS
    assert name_of(tmp_path / name) == "rows"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("rows.xlsx", b"", "unknown format"),
        ("rows.parquet", b"PAR", "Parquet"),
        ("rows.jsonl.gz", b"\x1f\x8b\x08", "unpacked"),
        ("folder", None, "`datasets`"),
        ("missing.jsonl", b"", "no file"),
    ],
)
def test_what_is_not_a_table_is_refused(name: str, content: bytes | None, reason: str, tmp_path: Path) -> None:
    if content is None:
        (tmp_path / name).mkdir()
    elif not name.startswith("missing"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match=reason):
        list(table_rows(tmp_path / name))
