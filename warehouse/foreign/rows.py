"""Rows of JSON with the line that each begins on: JSON lines, or one list of objects; and the loop of the readers over them.

A row that is not JSON is one fault with its line. In a file of lines the next row is not touched by it; a list that breaks off gives the
rows before the break, and one fault for what is left. Numbers that are not finite and halves of surrogate pairs, which JSON text
can name and a table cannot hold, are faults of their row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warehouse.foreign.runs import Collector, ForeignRuns, RowFault, files_of

_BLANK = re.compile(r"[ \t\r\n\ufeff]*")
_KEPT = 500


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `path` as it stands at `line`: its value, or why it has none."""

    path: Path
    line: int
    text: str
    value: Any = None
    fault: str | None = None


Reader = Callable[[dict[str, Any], Row, Collector], None]
"""Adds the records of one object to the collector, all or none; raises RowFault."""


def read_rows(form: str, path: Path, suffixes: tuple[str, ...], read: Reader) -> ForeignRuns:
    """What `read` makes of every row of a file, or of the files with `suffixes` in a folder.

    Raises:
        RequestError: there is no such file.
    """
    collector = Collector(form)
    for file in files_of(path, *suffixes):
        for row in rows_of(file):
            collector.rows += 1
            try:
                read(_object(row), row, collector)
            except (RowFault, RecursionError) as error:
                collector.quarantine(file, row.line, str(error), row.text)
    return collector.done()


def rows_of(path: Path) -> Iterator[Row]:
    """Every row of a file; blank lines are none."""
    with path.open("rb") as file:
        beginning = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    yield from _listed(path) if beginning.startswith(b"[") else _lines(path)


def _lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip(b" \t\r\n\xef\xbb\xbf"):
                continue
            shown = line[:_KEPT].decode(errors="replace")
            try:
                yield _storable(path, number, shown, json.loads(line.decode("utf-8-sig")))
            except (ValueError, RecursionError) as error:
                yield Row(path, number, shown, fault=f"not JSON: {error}")


def _listed(path: Path) -> Iterator[Row]:
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield Row(path, data.count(b"\n", 0, error.start) + 1, "", fault=f"the list is not UTF-8: {error}")
        return
    decoder = json.JSONDecoder()
    line, counted, place = 1, 0, _skip(text, 0) + 1
    while (place := _skip(text, place)) < len(text) and text[place] != "]":
        line, counted = line + text.count("\n", counted, place), place
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            yield Row(path, line, text[place : place + _KEPT], fault=f"from here on the list is not JSON: {error}")
            return
        yield _storable(path, line, text[place : min(end, place + _KEPT)], value)
        place = _skip(text, end)
        place += text[place : place + 1] == ","
    if text[place:].strip() != "]":
        line += text.count("\n", counted, place)
        yield Row(path, line, text[place : place + _KEPT], fault="the list does not end where the file does")


def _skip(text: str, place: int) -> int:
    found = _BLANK.match(text, place)
    return found.end() if found else place


def _storable(path: Path, line: int, text: str, value: Any) -> Row:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        return Row(path, line, text, fault=f"it holds what no table can: {error}")
    return Row(path, line, text, value)


def _object(row: Row) -> dict[str, Any]:
    if row.fault is not None:
        raise RowFault(row.fault)
    if not isinstance(row.value, dict):
        raise RowFault("the row is no object")
    return row.value
