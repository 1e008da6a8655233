"""Runs from the rows of a table: JSON lines, Parquet, and what else `tables.py` reads, each row set aside alone where it is malformed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warehouse.importers.runs import ImportedRuns, MalformedRow, Reader, RunCollector, read_files
from warehouse.importers.schemas import is_filled
from warehouse.importers.tables import is_columnar, table_rows
from warehouse.json_rows import Row


def read_rows(form: str, path: Path, suffixes: tuple[str, ...], read: Reader) -> ImportedRuns:
    """What `read` makes of every row of a file, or of the files with `suffixes` in a folder.

    Raises:
        RequestError: as `read_files` does.
    """

    def read_file(file: Path, collector: RunCollector) -> None:
        rows = list(table_rows(file, text="json"))
        collector.filled = is_columnar(file) or is_filled(row.value for row in rows)
        for row in rows:
            collector.rows += 1
            try:
                read(_object(row), row, collector)
            except (MalformedRow, RecursionError) as error:
                collector.quarantine(file, row.line, str(error), row.text)

    return read_files(form, path, suffixes, read_file)


def _object(row: Row) -> dict[str, Any]:
    if row.fault is not None:
        raise MalformedRow(row.fault)
    if not isinstance(row.value, dict):
        raise MalformedRow("the row is no object")
    return row.value
