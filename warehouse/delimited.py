"""CSV and TSV, packed by gzip or not: rows under a header, whose quoted cells may hold line breaks and be long.

Delimiter and encoding are guessed where they are not given. A byte order mark says UTF-8 or UTF-16. Without one a file is UTF-8, unless no
character beyond ASCII is UTF-8 and all read well as Windows-1252. What is neither stays UTF-8, and its rows hold the replacement character.
A row that cannot be read is one fault with its line, and the next row begins in the next line: a quote that is never closed spoils its
line and not the rest of the file.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from warehouse.bounds import MOST_ROW_BYTES, unpacked
from warehouse.errors import RequestError

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_COMMON = ",;\t|"
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_SAMPLE = 2**16
_SHOWN = 500

csv.field_size_limit(MOST_ROW_BYTES)  # Python's own are 131,072 characters, which a page soon has


@dataclass(frozen=True, slots=True)
class Delimiting:
    """The delimiter and the encoding of a file; what is empty is guessed."""

    delimiter: str = ""
    encoding: str = ""


GUESSED = Delimiting()


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


def read_delimited(path: Path, given: Delimiting = GUESSED) -> tuple[list[str], Iterator[DelimitedRow]]:
    """The columns of a file, none where it is empty, and its rows. Bytes of another encoding become the replacement character.

    Raises:
        RequestError: the header cannot be read, or names a column twice, of which one would hide the other.
    """
    records = _records(path, guess(path, given))
    _, _, header = next(records, (1, "", []))
    if isinstance(header, str):
        raise RequestError(f"The header of {path} cannot be read ({header}): name the columns there.")
    names = [name.strip() for name in header]
    lowered = [name.lower() for name in names]
    twice = next((name for name in names if name and lowered.count(name.lower()) > 1), None)
    if twice is not None:
        raise RequestError(f"{path} has two columns {twice!r}: give each a name of its own.")
    return names, (_under(names, *record) for record in records)


def guess(path: Path, given: Delimiting = GUESSED) -> Delimiting:
    """The delimiter and the encoding of a file, those that are given first. Raises RequestError for an encoding that there is not."""
    encoding = given.encoding or _guess_encoding(path)
    try:
        codecs.lookup(encoding)
    except LookupError as error:
        raise RequestError(f"there is no encoding {encoding!r:.40}; write for example --encoding cp1252.") from error
    if given.delimiter and len(given.delimiter) != 1:
        raise RequestError(f"the delimiter {given.delimiter!r:.40} is not one character; write for example --delimiter ';' or tab.")
    return Delimiting(given.delimiter or _guess_delimiter(path, encoding), encoding)


def _guess_encoding(path: Path) -> str:
    with unpacked(path) as file:
        sample = file.read(_SAMPLE)
        for mark, encoding in _MARKS.items():
            if sample.startswith(mark):
                return encoding
        if sample and sample.count(0) > len(sample) // 4:
            return "utf-16-le" if sample[1:2] == b"\0" else "utf-16-be"
        while piece := file.read(_SAMPLE) if sample.isascii() else b"":  # the first characters that say something
            sample = piece
    high = b"".join(re.findall(rb"[\x80-\xff]+", sample))
    utf8 = len(re.findall(rb"[\xc2-\xf4][\x80-\xbf]+", sample))
    return "cp1252" if high and not utf8 and _reads_as_cp1252(sample) else "utf-8-sig"


def _reads_as_cp1252(sample: bytes) -> bool:
    """Whether characters beyond ASCII are letters or signs of Windows-1252 where they stand: other encodings have them in long runs."""
    text = sample.decode("cp1252", errors="replace")
    letters = re.findall(r"[A-Za-z]([^\x00-\x7f])|([^\x00-\x7f])[A-Za-z]", text)
    quotes = "\u2018\u2019\u201c\u201d\u201e\u2013\u2014\u2026"
    fitting = all(sign.isalpha() or sign in quotes for pair in letters for sign in pair if sign)
    return "\ufffd" not in text and bool(letters) and fitting and not re.search(r"[^\x00-\x7f]{3}", text)


def _guess_delimiter(path: Path, encoding: str) -> str:
    """The delimiter by which the first records have the same number of cells, of several the one of the file's ending."""
    usual = usual_delimiter(path)
    with unpacked(path) as file:
        text = file.read(_SAMPLE).decode(encoding, errors="replace").removeprefix("\ufeff")
    found: dict[str, tuple[float, int]] = {}
    for delimiter in (usual, *(each for each in _COMMON if each != usual)):
        try:
            records = [cells for cells in islice(csv.reader(io.StringIO(text), delimiter=delimiter), 50) if cells]
        except csv.Error:
            continue
        if records and len(records[0]) > 1:
            even = sum(len(cells) == len(records[0]) for cells in records[1:]) / max(1, len(records) - 1)
            found[delimiter] = (even if len(records) > 1 else 1.0, delimiter == usual)
    best = max(found, key=lambda each: found[each], default=usual)
    return usual if usual in found and found[usual][0] >= 0.5 else best


def usual_delimiter(path: Path) -> str:
    """The delimiter that the ending of a file says."""
    return _DELIMITERS[_ending(path)]


def _ending(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _under(header: list[str], line: int, text: str, cells: list[str] | str) -> DelimitedRow:
    if isinstance(cells, str):
        return DelimitedRow(line, text, fault=cells)
    if len(cells) != len(header):
        return DelimitedRow(line, text, fault=f"{len(cells)} cells where the header has {len(header)}")
    return DelimitedRow(line, text, dict(zip(header, cells, strict=True)))


def _records(path: Path, form: Delimiting) -> Iterator[tuple[int, str, list[str] | str]]:
    """Every record that is not blank: the line that it begins in, its beginning, and its cells or what is wrong with it."""
    with unpacked(path) as file:
        lines = io.TextIOWrapper(file, encoding=form.encoding, errors="replace", newline="")
        ahead: deque[str] = deque()
        number = 1
        while first := ahead.popleft() if ahead else lines.readline():
            if not first.strip(" \r\n"):
                number += 1
                continue
            read: list[str] = []
            reader = csv.reader(_noted(chain([first], _drained(ahead), lines), read), delimiter=form.delimiter, strict=True)
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
