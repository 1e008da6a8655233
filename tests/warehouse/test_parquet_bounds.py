"""Parquet files whose pages say something else than their footers: refused in a sentence before anything of them is unpacked."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from flows.cli import app, exit_status
from tests.memory import most_taken
from tests.warehouse.parquet_files import (
    DELTA_BYTE_ARRAY,
    DICTIONARY_CODES,
    FIXED,
    FLAT,
    LISTS,
    PLAIN,
    ZSTD,
    chunk,
    first_word,
    flat,
    footer,
    header,
    in_one_list,
    lists,
    page,
    repeated_text,
    text,
    thrift,
    varint,
    whole,
)
from warehouse.errors import RequestError
from warehouse.foreign import MIB, open_table
from warehouse.importers.tables import table_rows

MOST_MIB = 300
"""What reading any of these files may take of this process, refused or not."""
MEMORY, DAMAGED, READ = "of memory to be read", "that can be read", ""
"""How a file ends: it needs more memory than the child has, its parser refuses it, or it has rows within bounds all the same."""
WHO = page(text(b"Who?"), 1)
MOST = 2**31 - 1


def zstd(content: bytes, blanks: int = 0) -> bytes:
    """Some content, and megabytes of blanks after it, packed."""
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as packed:
        packed.write(content)
        for _ in range(blanks):
            packed.write(b" " * MIB)
    return out.getvalue().to_pybytes()


def blank(megabytes: int) -> bytes:
    """A file of one text of blanks, of which the footer says that it has a hundred bytes."""
    size = megabytes * MIB
    return flat(page(zstd(struct.pack("<I", size), megabytes), 1, size=size + 4), packing=ZSTD)


def padded() -> bytes:
    """The column ends after its first page, and Arrow reads on for a hundred bytes, for a writer that is said to be old."""
    more = page(text(b"x" * 30), 1, size=MOST)
    group = {1: [chunk(4, len(WHO), 2, [b"question"])], 2: ("i64", 100), 3: ("i64", 2)}
    return whole(WHO + more, footer(FLAT, [group], 2, b"parquet-mr version 1.2.8"))


def dictionary() -> bytes:
    words, codes = page(text(b"Who?"), MOST, dictionary=True), page(first_word(1), 1, encoding=DICTIONARY_CODES)
    column = chunk(4 + len(words), len(words + codes), 1, [b"question"], dictionary=4)
    return whole(words + codes, footer(FLAT, [{1: [column], 2: ("i64", 100), 3: ("i64", 1)}]))


def long_codes() -> bytes:
    """A word of thirty megabytes in a dictionary, and a million times its place: of a type that Arrow writes out."""
    words, codes = page(zstd(b"", 30), 1, size=30 * MIB, dictionary=True), zstd(first_word(10**6))
    codes = page(codes, 10**6, size=5, encoding=DICTIONARY_CODES)
    column = chunk(4 + len(words), len(words + codes), 10**6, [b"question"], ZSTD, dictionary=4, kind=FIXED)
    listed = [FLAT[0], {1: ("i32", FIXED), 2: ("i32", 30 * MIB), 3: ("i32", 0), 4: b"question"}]
    return whole(words + codes, footer(listed, [{1: [column], 2: ("i64", 100), 3: ("i64", 10**6)}], 10**6))


def mixed(levels: Callable[[int], bytes], columns: list[Any], path: list[bytes], count: int, rows: int, short: int = 0) -> bytes:
    """A text of thirty megabytes behind short ones in a dictionary, named again and again, and one outside of the dictionary."""
    size = 30 * MIB
    words = page(zstd(text(b"") * short + struct.pack("<I", size), 30), short + 1, size=4 * short + size + 4, dictionary=True)
    place = b"\x0a" + varint(count << 1) + short.to_bytes(2, "little")  # ten bits each, all in one run
    pages = words
    for content, encoding, values in ((levels(count) + place, DICTIONARY_CODES, count), (levels(1) + text(b"x"), PLAIN, 1)):
        pages += page(zstd(content), values, size=len(content), encoding=encoding)
    column = chunk(4 + len(words), len(pages), count + 1, path, ZSTD, dictionary=4)
    return whole(pages, footer(columns, [{1: [column], 2: ("i64", 100), 3: ("i64", rows)}], rows))


def headed(*fields: tuple[int, Any], after: bytes = b"") -> bytes:
    """A file of one page with these fields of its header, each as it stands there."""
    data = zstd(text(b"Who?"))
    given = [field for field in header(8, len(data), 1) if field[0] not in dict(fields)]
    return flat(thrift([*given, *fields])[:-1] + after + b"\0" + data, packing=ZSTD)


def wide() -> bytes:
    """Nine groups of 90,000 columns that are nothing, of which Arrow would make half a gigabyte."""
    group = b"\x19\xfc" + varint(90_000) + b"\x26\0\0" * 90_000 + b"\x16\0\x16\0\0"
    return whole(b"", footer(FLAT, [])[:-2] + b"\x9c" + group * 9 + b"\0")


FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "unpacks to half a gigabyte": (lambda: blank(500), MEMORY),
    "unpacks to more than there is room for": (lambda: blank(100), "unpacks to more than 64 MiB"),
    "says two gigabytes and holds none": (lambda: flat(page(text(b"Who?"), 1, size=MOST)), READ),
    "has a list of a hundred million nulls": (lambda: lists(page(in_one_list(10**8, 2), 10**8)), MEMORY),
    "says two billion words": (dictionary, MEMORY),
    "says one long word a million times": (long_codes, MEMORY),
    "goes on past its column": (padded, READ),
    "says less than nothing": (lambda: flat(page(text(b"Who?"), 1, size=-5)), DAMAGED),
    "says two sizes": (lambda: headed((2, ("i32", MOST)), (2, ("i64", 8))), MEMORY),
    "says a size by the number of another field": (lambda: headed((2, ("i32", MOST)), (2 + 2**16, ("i32", 8))), READ),
    "says a size beyond its type": (lambda: headed((2, ("i32", 2**31 + 4))), DAMAGED),
    "is nested without end": (lambda: headed(after=b"\x1c" * 50_000), DAMAGED),
    "lists a billion things that take no room": (lambda: headed(after=b"\x19\xf0" + varint(MOST)), DAMAGED),
    "lists a million columns and has none": (
        lambda: whole(b"", footer(FLAT, [])[:-2] + b"\x1c\x19\xfc" + varint(999_999) + b"\0" * 10),
        DAMAGED,
    ),
    "has a footer of columns that are nothing": (wide, READ),
    "ends otherwise": (lambda: b"PAR1" + b"x" * 100 + struct.pack("<I", 50) + b"PARX", DAMAGED),
    "is nothing": (lambda: b"", DAMAGED),
    "has lists of texts that each repeat the one before": (
        lambda: lists(page(repeated_text(b"Who?", 200), 200, encoding=DELTA_BYTE_ARRAY)),
        DAMAGED,
    ),
}  # fmt: skip


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


def repeating() -> bytes:
    """A megabyte of blanks, said two thousand times in two kilobytes, as the encoding is meant to."""
    content = repeated_text(b" " * MIB, 2000)
    return flat(page(zstd(content), 2000, size=len(content), encoding=DELTA_BYTE_ARRAY), 2000, ZSTD, rows=2000)


BOMBS: dict[str, Callable[[], bytes]] = {
    "texts that each repeat the one before": repeating,
    "a text that is named again and again": lambda: mixed(lambda count: b"", FLAT, [b"question"], 900_000, 900_001, short=999),
    "a text that is named again and again in lists": lambda: mixed(in_one_list, LISTS, [b"question", b"list", b"element"], 900_000, 2),
}


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
