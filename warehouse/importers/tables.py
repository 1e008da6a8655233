"""Rows of a table, whatever it lies in: JSON, CSV, TSV, Parquet, a folder that `datasets` has saved, or a data set of the Hugging Face hub.

A row that cannot be read is one fault with its line, and the next row is not touched by it. Cells of CSV may hold line breaks, within
quotes. The hub is asked for `hf:NAME[:CONFIG][@SPLIT]` alone, and data sets there run no code of theirs here (`datasets` 4 and later).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warehouse.arrow_rows import arrow_rows, is_arrow, is_saved, saved_rows
from warehouse.delimited import GUESSED, Delimiting, is_delimited, read_delimited
from warehouse.errors import RequestError
from warehouse.json_rows import Row, begins_as_json, rows_of
from warehouse.parquet_rows import is_parquet, open_parquet

if TYPE_CHECKING:
    from datasets import Dataset

HUB = "hf:"
"""Before the name of a data set of the hub."""
_JSON = (".json", ".jsonl", ".gz")
KINDS = (
    "a .json, .jsonl, .csv, .tsv (each also .gz), .parquet or .arrow file, a folder that `datasets` has saved, or hf:NAME[:CONFIG][@SPLIT]"
)


def table_rows(path: Path, form: Delimiting = GUESSED, text: str = "") -> Iterator[Row]:
    """Every row of what `path` names, in its order; `line` counts lines of text from 1, elsewhere rows.

    A file is known by its first bytes and, where it is text, by its name.

    Args:
        form: the delimiter and the encoding of CSV, where they are not to be guessed.
        text: `json` where text of any other name is JSON.

    Raises:
        RequestError: there is nothing of that name, or it is of no format that can be read.
    """
    if str(path).startswith(HUB):
        return _numbered(path, _open_hub(str(path)))
    if not path.exists():
        raise RequestError(f"there is no file {path}; name {KINDS}.")
    if path.is_dir():
        if not is_saved(path):
            raise RequestError(f"the folder {path} is none that `datasets` has saved; name {KINDS}.")
        return _numbered(path, saved_rows(path))
    if is_parquet(path):
        return _numbered(path, _parquet(path))
    if is_arrow(path):
        return _numbered(path, arrow_rows(path))
    if is_delimited(path):
        return _delimited(path, form)
    if text == "json" or path.suffix.lower() in _JSON or begins_as_json(path):
        return rows_of(path)
    if path.suffix.lower() == ".parquet":
        return _numbered(path, _parquet(path))
    raise RequestError(f"{path} is of no format that is known; name {KINDS}.")


def is_columnar(path: Path) -> bool:
    """Whether rows come out of Arrow's columns, where all objects of a column have the same keys."""
    return path.is_dir() or is_parquet(path) or is_arrow(path)


def name_of(path: Path) -> str:
    """What a table is called: its file's or folder's name without endings, or the last part of its name on the hub."""
    if str(path).startswith(HUB):
        return str(path).removeprefix(HUB).partition("@")[0].partition(":")[0].rpartition("/")[2]
    name = path.resolve().name
    return name if path.is_dir() else Path(name.removesuffix(".gz")).stem


def _numbered(path: Path, rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        yield Row(path, number, str(row)[:500], {name: _in_json(value) for name, value in row.items()})


def _in_json(value: Any) -> Any:
    """A value of Arrow's as JSON can have it: times and days as ISO 8601 writes them, decimals as their digits."""
    if isinstance(value, dict):
        return {name: _in_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_in_json(each) for each in value]
    return value.isoformat() if isinstance(value, date | time) else str(value) if isinstance(value, Decimal) else value


def _delimited(path: Path, form: Delimiting) -> Iterator[Row]:
    for row in read_delimited(path, form)[1]:
        yield Row(path, row.line, row.text, row.cells, row.fault or None)


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    with open_parquet(path) as file:
        yield from file.rows()


def _open_hub(name: str) -> Dataset:
    """The data set `hf:NAME[:CONFIG][@SPLIT]`; the split is `train` where none is named."""
    named, _, split = name.removeprefix(HUB).partition("@")
    dataset, _, config = named.partition(":")
    from datasets import load_dataset  # two seconds to load

    try:
        return load_dataset(dataset, config or None, split=split or "train")
    except Exception as error:  # of the network, of the hub, or of the data set: each library has its own, and none a common base
        why = " ".join(str(error).split())[:300]
        raise RequestError(
            f"{name} cannot be had from the Hugging Face hub ({type(error).__name__}: {why}); it needs the network and a right name: "
            "else download the data set and name its file."
        ) from error
