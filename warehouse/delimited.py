"""CSV and TSV, packed by gzip or not: rows under a header, whose quoted cells may hold line breaks and be long.

A row that cannot be read is one fault with its line, and the next row begins in the next line: a quote that is never closed spoils its
line and not the rest of the file.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from warehouse.bounds import MOST_ROW_BYTES, unpacked
from warehouse.errors import RequestError

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_SHOWN = 500

csv.field_size_limit(MOST_ROW_BYTES)  # Python's own are 131,072 characters, which a page soon has


@dataclass(frozen=True, slots=True)
class DelimitedRow:
    """A row that begins in `line`: its cells by column, or why it has none."""

    line: int
    text: str
    cells: dict[str, str] | None = None
    fault: str = ""


def is_delimited(path: Path) -> bool:
    """Whether a file is CSV or TSV, by its ending."""
    return _ending(path) in _DELIMITERS


def read_delimited(path: Path) -> tuple[list[str], Iterator[DelimitedRow]]:
    """The columns of a file, none where it is empty, and its rows. Bytes that are no UTF-8 become the replacement character.

    Raises:
        RequestError: the header cannot be read, or names a column twice, of which one would hide the other.
    """
    records = _records(path, _DELIMITERS[_ending(path)])
    _, _, header = next(records, (1, "", []))
    if isinstance(header, str):
        raise RequestError(f"The header of {path} cannot be read ({header}): name the columns there.")
    names = [name.strip() for name in header]
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"{path} has two columns {twice!r}: give each a name of its own.")
    return names, (_under(names, *record) for record in records)


def _ending(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _under(header: list[str], line: int, text: str, cells: list[str] | str) -> DelimitedRow:
    if isinstance(cells, str):
        return DelimitedRow(line, text, fault=cells)
    if len(cells) != len(header):
        return DelimitedRow(line, text, fault=f"{len(cells)} cells where the header has {len(header)}")
    return DelimitedRow(line, text, dict(zip(header, cells, strict=True)))


def _records(path: Path, delimiter: str) -> Iterator[tuple[int, str, list[str] | str]]:
    """Every record that is not blank: the line that it begins in, its beginning, and its cells or what is wrong with it."""
    with unpacked(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
        ahead: deque[str] = deque()
        number = 1
        while first := ahead.popleft() if ahead else lines.readline():
            if not first.strip(" \r\n"):
                number += 1
                continue
            read: list[str] = []
            reader = csv.reader(_noted(chain([first], _drained(ahead), lines), read), delimiter=delimiter, strict=True)
            try:
                cells: list[str] | str = next(reader, [])
            except csv.Error as error:
                cells = str(error)
                ahead.extendleft(reversed(read[1:]))
                read = read[:1]
            yield number, first.rstrip("\r\n")[:_SHOWN], cells
            number += len(read)


def _noted(lines: Iterator[str], read: list[str]) -> Iterator[str]:
    """The lines, each of which stands in `read` once it was asked for."""
    for line in lines:
        read.append(line)
        yield line


def _drained(lines: deque[str]) -> Iterator[str]:
    while lines:
        yield lines.popleft()
