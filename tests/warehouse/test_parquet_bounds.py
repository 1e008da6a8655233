"""Parquet files whose pages say something else than their footers: refused in a sentence before anything of them is unpacked."""

from __future__ import annotations

import random
import struct
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from flows.cli import app, exit_status
from tests.memory import most_taken
from tests.warehouse.parquet_files import BOMBS, DAMAGED, DELTA_BYTE_ARRAY, FILES, READ, ZSTD, flat, page, repeated_text, zstd
from warehouse.errors import RequestError
from warehouse.foreign import MIB, open_table
from warehouse.importers.tables import table_rows

MOST_MIB = 300
"""What reading any of these files may take of this process, refused or not."""


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warehouse.foreign.CHILD_MEMORY", 1024 * MIB)
    monkeypatch.setattr("warehouse.foreign.MEMORY_A_BYTE", 0)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if FILES[name][1] not in (DAMAGED, READ) else ()) for name in FILES]
)
def test_a_lying_file_is_refused_or_read_within_bounds(name: str, tmp_path: Path) -> None:
    make, told = FILES[name]
    path = tmp_path / "lies.parquet"
    path.write_bytes(make())

    def read() -> None:
        with nullcontext() if told == READ else pytest.raises(RequestError) as error:
            list(table_rows(path))
        if told != READ:
            assert told in str(error.value) and "lies.parquet" in str(error.value) and len(str(error.value)) < 400

    assert most_taken(read) < MOST_MIB


def test_the_command_refuses_a_damaged_file_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "lies.parquet").write_bytes(FILES["is nothing"][0]())
    command = ("import", "tasks", tmp_path / "lies.parquet", "--environment", "search", "--verifier", "qa_em", "--home", tmp_path / "home")
    done = CliRunner().invoke(app, [str(part) for part in command])
    assert isinstance(done.exception, RequestError)
    assert exit_status(done.exception) == 2
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_what_is_said_again_and_again_is_not_written_out(name: str, tmp_path: Path) -> None:
    (tmp_path / "bomb.parquet").write_bytes(BOMBS[name]())

    def refused() -> None:
        with pytest.raises(RequestError, match=r"unpacks to more than 64 MiB|of memory to be read"):
            list(table_rows(tmp_path / "bomb.parquet"))

    assert most_taken(refused) < 2 * MOST_MIB


def test_texts_that_each_repeat_the_one_before_are_read(tmp_path: Path) -> None:
    content = repeated_text(b"Who? " * 3, 2000)
    (tmp_path / "texts.parquet").write_bytes(flat(page(content, 2000, encoding=DELTA_BYTE_ARRAY), 2000, rows=2000))
    assert [row.value for row in table_rows(tmp_path / "texts.parquet")] == [{"question": "Who? " * 3}] * 2000


@pytest.mark.long
def test_long_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three megabytes may unpack to six hundred, of which the footer says nothing."""
    monkeypatch.setattr("warehouse.foreign.CHILD_MEMORY", 2048 * MIB)
    path = tmp_path / "long.parquet"
    noise = random.Random(1).randbytes(3 * MIB).hex().encode()
    pages = [page(zstd(struct.pack("<I", len(noise)) + noise), 1, size=len(noise) + 4)]
    for number in range(60):
        size = 8 * MIB + 2
        pages.append(page(zstd(struct.pack("<I", size) + b"%02d" % number, 8), 1, size=size + 4))
    path.write_bytes(flat(b"".join(pages), values=61, packing=ZSTD, rows=61))
    del pages

    def read() -> None:
        assert sum(1 for _ in table_rows(path)) == 61

    assert most_taken(read) < 3 * MOST_MIB


HONEST = pa.table(
    {
        "question": [f"Who is {number % 70}?" for number in range(700)],
        "number": range(700),
        "ratio": [number / 7 if number % 3 else None for number in range(700)],
        "yes": [number % 2 == 0 for number in range(700)],
        "answers": [[f"a{number}", None][: number % 3] for number in range(700)],
        "more": [{"who": "Amber", "where": [{"x": number}]} for number in range(700)],
        "raw": [bytes([number % 256]) * 5 for number in range(700)],
    }
)


@pytest.mark.parametrize("pages", ["1.0", "2.0"])
@pytest.mark.parametrize(
    "how",
    [
        *({"compression": packing} for packing in ("none", "snappy", "gzip", "brotli", "lz4", "zstd")),
        {"use_dictionary": False, "column_encoding": {"question": "DELTA_BYTE_ARRAY"}},
        {"data_page_size": 512, "row_group_size": 100},
        {"write_page_index": True},
    ],
)
def test_honest_files_are_read_whole(pages: str, how: dict[str, Any], tmp_path: Path) -> None:
    options = {"write_page_checksum": True, "store_schema": False, **how}
    parquet.write_table(HONEST, tmp_path / "honest.parquet", data_page_version=pages, **options)
    assert [row.value for row in table_rows(tmp_path / "honest.parquet")] == HONEST.to_pylist()


def test_files_without_rows_or_columns_are_read(tmp_path: Path) -> None:
    parquet.write_table(HONEST.slice(0, 0), tmp_path / "rows.parquet")
    parquet.write_table(pa.table({}), tmp_path / "columns.parquet")
    assert [*table_rows(tmp_path / "rows.parquet"), *table_rows(tmp_path / "columns.parquet")] == []
    assert open_table(tmp_path / "rows.parquet")[0]["columns"] == HONEST.column_names


@pytest.mark.slow
def test_a_damaged_file_is_refused_or_read(tmp_path: Path) -> None:
    parquet.write_table(HONEST.slice(0, 40), tmp_path / "honest.parquet", compression="none", store_schema=False)
    content, chance = (tmp_path / "honest.parquet").read_bytes(), random.Random(1)

    def read() -> None:
        for _ in range(30):
            spoilt = bytearray(content)
            for _ in range(chance.randint(1, 6)):
                spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
            (tmp_path / "spoilt.parquet").write_bytes(spoilt)
            with suppress(RequestError):
                list(table_rows(tmp_path / "spoilt.parquet"))

    assert most_taken(read) < MOST_MIB
