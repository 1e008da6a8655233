"""Plain texts from wherever they lie: files of rows, folders of pages, and folders that Hugging Face `datasets` has saved."""

from __future__ import annotations

from pathlib import Path

from warehouse.corpora.pages import read_pages
from warehouse.corpora.tabular import read_column
from warehouse.errors import RequestError
from warehouse.records import Failure

SAVED, SPLITS = "state.json", "dataset_dict.json"
"""The files by which `datasets` knows a data set, and one of several splits, that it has saved."""


def read_texts(path: Path, column: str = "text") -> tuple[list[str], list[Failure]]:
    """The texts in `path`, in their order, and what was left out, with its reason.

    Args:
        column: where the rows of a file or of a saved data set have their text; the split of one with several is `train`.

    Raises:
        RequestError: there is nothing at `path`, it is of no known format, or it has no such column.
    """
    if not path.exists():
        raise RequestError(f"There is nothing at {path}: check the path.")
    if path.is_file():
        return read_column(path, column)
    if (path / SAVED).is_file() or (path / SPLITS).is_file():
        return _saved(path, column)
    corpus = read_pages(path)
    return [document.text for document in corpus.documents], list(corpus.failures)


def _saved(path: Path, column: str) -> tuple[list[str], list[Failure]]:
    from datasets import DatasetDict, load_from_disk  # two seconds to load

    found = load_from_disk(str(path))
    if isinstance(found, DatasetDict):
        if "train" not in found:
            raise RequestError(f"{path} has no split train, but {', '.join(found)}: name the folder of one of them.")
        found = found["train"]
    if column not in found.column_names:
        raise RequestError(f"{path} has no column {column!r}, but {', '.join(found.column_names)}: name one of them.")
    rows = list(found[column])
    texts = [row for row in rows if isinstance(row, str) and row.strip()]
    failures = [
        Failure("import", "broken_row", f"{path.name}, row {number}: no text in {column}", {"file": str(path), "line": number})
        for number, row in enumerate(rows)
        if not isinstance(row, str) or not row.strip()
    ]
    return texts, failures
