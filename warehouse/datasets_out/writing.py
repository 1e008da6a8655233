"""Writing a dataset: a folder that `datasets.load_dataset` reads, Parquet, or JSON lines; whole or not at all.

A folder holds a file for each split and the card as README.md. A path that ends in `.parquet` or `.jsonl` is one file with all
splits, the card beside it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from warehouse.datasets_out.card import card_of
from warehouse.datasets_out.dataset import Dataset, Row
from warehouse.errors import RequestError

FORMATS = ("hf", "parquet", "jsonl")


def format_of(path: Path, asked: str | None) -> str:
    """The format to write: as asked, else by the suffix of `path`, else `hf`. Raises `RequestError` where they contradict each other."""
    suffix = path.suffix.removeprefix(".")
    if asked is not None and asked not in FORMATS:
        raise RequestError(f"there is no format {asked!r}; choose one of {', '.join(FORMATS)}.")
    if suffix in FORMATS and asked not in (None, suffix):
        raise RequestError(f"{path} is a {suffix} file and --format says {asked}; leave one of them out.")
    return asked or (suffix if suffix in FORMATS else "hf")


def is_file(path: Path) -> bool:
    """Whether a path names one file rather than a folder."""
    return path.suffix in (".parquet", ".jsonl")


def card_beside(path: Path) -> Path:
    """Where the card of a dataset in one file stands."""
    return path.with_name(f"{path.name}.card.md")


def write_dataset(dataset: Dataset, path: Path, form: str) -> None:
    """Write `dataset` to `path`. Raises `RequestError` where there is something already."""
    check_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    if is_file(path):
        _write_rows(dataset.schema, [row for rows in dataset.splits.values() for row in rows], part, form)
        card_beside(path).write_text(card_of(dataset, form, {"train": path.name}), encoding="utf-8")
    else:
        shutil.rmtree(part, ignore_errors=True)
        _write_folder(dataset, part, form)
    part.rename(path)


def check_free(path: Path) -> None:
    """Raises `RequestError` where `path` is taken."""
    if path.exists():
        raise RequestError(f"{path} exists already: choose another path or remove it.")


def _write_folder(dataset: Dataset, folder: Path, form: str) -> None:
    names = {"hf": "data/{}-00000-of-00001.parquet", "parquet": "{}.parquet", "jsonl": "{}.jsonl"}
    files = {split: names[form].format(split) for split in dataset.splits}
    for split, rows in dataset.splits.items():
        file = folder / files[split]
        file.parent.mkdir(parents=True, exist_ok=True)
        _write_rows(dataset.schema, rows, file, form)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(card_of(dataset, form, files), encoding="utf-8")


def _write_rows(schema: pa.Schema, rows: Sequence[Row], file: Path, form: str) -> None:
    if form == "jsonl":
        with file.open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        parquet.write_table(pa.Table.from_pylist(list(rows), schema), file, compression="zstd")
