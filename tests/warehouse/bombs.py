"""Files that are small and unpack to gigabytes, and a query that makes as much: each is refused in one sentence, and no memory is taken.

The process may take another gigabyte and a half while a test runs. Such a limit hits every thread of a process, and one that cannot take
it ends it: so these run in a process of their own, by test_bounds.py.
"""

from __future__ import annotations

import gzip
import json
import resource
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet
import pytest

from synth.questions.decontamination import read_evaluation_set
from warehouse import Lake, queries
from warehouse.benchmark_sets import read_tasks
from warehouse.corpora.files import read_documents, read_texts
from warehouse.errors import RequestError
from warehouse.foreign import FREE_VALUES, MIB
from warehouse.importers.inspect_logs import read_inspect
from warehouse.importers.tables import table_rows

ROW: dict[str, Any] = {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Amber"}]}
EVALUATED = {"task": "t", "model": "m", "created": "2026-01-01T00:00:00+00:00", "dataset": {"name": "d"}, "config": {}}
HEADER = {"version": 2, "status": "success", "eval": EVALUATED}
SAMPLE: dict[str, Any] = {"id": 1, "epoch": 1, "input": "Who?", "target": "Amber", **ROW}


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Room for another gigabyte and a half: what a bomb unpacks to has none."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 1536 * MIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def zeros(megabytes: int) -> bytes:
    """So many megabytes of blanks, packed by gzip in as many members of one."""
    return gzip.compress(b" " * MIB) * megabytes


def log(path: Path, samples: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("header.json", json.dumps(HEADER))
        for name, content in samples.items():
            archive.writestr(f"samples/{name}_epoch_1.json", content)
    return path


@pytest.mark.parametrize("read", [lambda path: list(table_rows(path)), read_tasks, read_evaluation_set])
def test_a_small_gzip_of_gigabytes_is_refused(read: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "bomb.jsonl.gz").write_bytes(zeros(3000))
    with pytest.raises(RequestError, match=r"bomb.jsonl.gz \(\d\.\d MiB\) unpacks to more than \d+ MiB; at most that is read"):
        read(tmp_path / "bomb.jsonl.gz")


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_log_of_three_megabytes_that_holds_gigabytes_is_refused(compression: int, tmp_path: Path) -> None:
    bomb = log(tmp_path / "bomb.eval", {str(n): b'{"input": "' + b" " * (25 * MIB) + b'"}' for n in range(8)}, compression)
    with pytest.raises(RequestError, match="unpacks to 9 members of 200 MiB; at most"):
        read_inspect(bomb)


def test_a_member_that_is_larger_than_the_archive_says_is_not_unpacked(tmp_path: Path) -> None:
    path = log(tmp_path / "liar.eval", {"0": json.dumps(SAMPLE).encode(), "1": b" " * (120 * MIB)})
    content = path.read_bytes()
    path.write_bytes(content.replace((120 * MIB).to_bytes(4, "little"), (20).to_bytes(4, "little")))
    found = read_inspect(path)
    assert (found.rows, len(found.trajectories), len(found.failures)) == (2, 1, 1)
    assert "CRC" in found.failures[0].reason


@pytest.mark.parametrize("shape", ["rows", "rows of dictionaries", "a list in a row", "a text in a list in a row"])
def test_a_parquet_file_that_says_one_long_value_a_million_times_is_refused(tmp_path: Path, shape: str) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 500_000, pa.int32()), pa.array(["x" * 100_000]))
    if "list" in shape:
        values = pa.ListArray.from_arrays(pa.array([0, 1, 500_000], pa.int32()), values)
    if "text" in shape:
        values = pa.StructArray.from_arrays([values], ["inner"])
    columns = dict.fromkeys(("id", "title", "text", "question", "answer"), values)
    parquet.write_table(pa.table(columns), tmp_path / "bomb.parquet", store_schema=shape != "rows")
    assert (tmp_path / "bomb.parquet").stat().st_size < MIB
    for read in (lambda path: list(table_rows(path)), read_documents):
        with pytest.raises(RequestError, match=r"unpacks to more than|of memory to be read"):
            read(tmp_path / "bomb.parquet")


EMPTY = b'{"":0},'


def test_a_small_file_of_many_small_values_is_refused(tmp_path: Path) -> None:
    """A hundred bytes of memory stand for each two letters of `{}`: twenty kilobytes took half a gigabyte."""
    row = json.dumps({**ROW, "x": [0]}).encode().replace(b"[0]", b"[" + EMPTY * 500_000 + b"0]")
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzip.compress(row + b"\n") * 12)
    with pytest.raises(RequestError, match=f"unpacks to more than {FREE_VALUES:,} values"):
        list(table_rows(tmp_path / "bomb.jsonl.gz"))
    sample = json.dumps({**SAMPLE, "metadata": {"x": [0]}}).encode().replace(b"[0]", b"[" + EMPTY * 900_000 + b"0]")
    found = read_inspect(log(tmp_path / "bomb.eval", {"0": json.dumps(SAMPLE).encode(), "1": sample, "2": sample, "3": sample}))
    assert (found.rows, len(found.trajectories), len(found.failures)) == (4, 2, 2)
    assert f"more than {FREE_VALUES:,} values would be read" in found.failures[0].reason


def test_a_small_parquet_file_of_many_rows_or_empty_lists_is_refused(tmp_path: Path) -> None:
    ones = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3_000_000, np.int8)), pa.array(["x"]))
    inner = pa.ListArray.from_arrays(pa.array(np.zeros(3_000_001, np.int32)), pa.array([], pa.int32()))
    empty = pa.ListArray.from_arrays(pa.array([0, len(inner)], pa.int32()), inner)
    for name, column in (("rows", ones), ("nulls", pa.nulls(3_000_000, pa.int8())), ("lists", empty)):
        parquet.write_table(pa.table({"question": column}), tmp_path / f"{name}.parquet")
        assert (tmp_path / f"{name}.parquet").stat().st_size < 100_000
        with pytest.raises(RequestError, match="unpacks to more than 2,000,000 values"):
            list(table_rows(tmp_path / f"{name}.parquet"))


def test_columns_that_share_what_they_hold_are_read(tmp_path: Path) -> None:
    ints = pa.table({"question": pa.array([1, 2, 1]).dictionary_encode(), "m": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int8()))})
    parquet.write_table(ints, tmp_path / "ints.parquet")
    assert [row.value["question"] for row in table_rows(tmp_path / "ints.parquet")] == [1, 2, 1]


def saved(folder: Path, table: pa.Table, packing: str | None = None) -> Path:
    """A folder as `datasets` saves one."""
    folder.mkdir(exist_ok=True)
    with ipc.new_stream(folder / "data.arrow", table.schema, options=ipc.IpcWriteOptions(compression=packing)) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return folder


@pytest.mark.parametrize("read", [lambda path: list(table_rows(path)), lambda path: read_texts(path, "question")])
def test_a_saved_data_set_that_says_much_is_refused(read: Callable[[Path], Any], tmp_path: Path) -> None:
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int8)), pa.array(["x" * MIB]))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([10**9], pa.int32()), pa.array(["x"]))
    texts = pa.array(["x" * (100 * MIB)])
    for column, packing, told in (
        (texts, "zstd", "unpacks to more than"), (texts, "lz4", "unpacks to more than"), (long, None, "unpacks to more than"),
        (pa.nulls(10**9), None, "more than 2,000,000 values"), (runs, None, "more than 2,000,000 values"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=told):
            read(saved(tmp_path / "set", pa.table({"question": column}), packing))


def test_texts_beyond_the_memory_for_a_query_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB does not count what a function makes: the texts of one vector of rows are there at once."""
    held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    monkeypatch.setattr(queries, "most_memory", lambda: held + 300 * MIB)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with Lake(tmp_path) as lake:
        with pytest.raises(RequestError, match="needs more memory"), queries.bounded_process():
            lake.query("SELECT repeat('x', 1000000) AS t FROM range(100000)")
        assert resource.getrlimit(resource.RLIMIT_DATA) == before
        assert lake.query("SELECT 1 AS n").to_pylist() == [{"n": 1}]
