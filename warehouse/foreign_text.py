"""Parse untrusted text for `foreign_child.py`: rows of JSON, CSV and TSV, compressed or not.

CSV: a byte order mark selects UTF-8 or UTF-16; without one a file is UTF-8, or Windows-1252 if it decodes only as that. An unclosed quote
invalidates its line only. JSON: rows as lines, as one list, or as consecutive values over several lines.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, cast

from warehouse.json_text import TOO_DEEP, RepeatedKey, is_too_deep, read_json, unique_object

MIB = 2**20
MOST_ROW_BYTES = 128 * MIB
SHOWN = 500
"""Characters of a row kept for display."""
_SAMPLE = 2**16
DELIMITERS = {".csv": ",", ".tsv": "\t"}
_COMMON = ",;\t|"
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_OPENERS: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_BLANK = re.compile(r"[ \t\r\n\ufeff]*")
_STRICT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False)

Head = dict[str, Any]
Line = tuple[int, str | None, str, Any] | bytes
"""A row: line or number, fault, beginning of its text, value; or all of them encoded."""


class Refused(Exception):
    """The file cannot be read; the message is one sentence."""


class File:
    """The file of a request, with the limits on its unpacked content."""

    def __init__(self, path: Path, room: int, values: int) -> None:
        self.path, self.room, self.values, self._left = path, room, values, values

    def open(self) -> IO[bytes]:
        """Open the content, decompressing gzip, bzip2 and xz. Reading raises Refused beyond the limits."""
        opener = next((opener for magic, opener in _OPENERS.items() if self.start(8).startswith(magic)), None)
        if opener is None:
            return self.path.open("rb")
        self._left = self.values
        return cast(IO[bytes], io.BufferedReader(_Unpacked(opener(self.path), self)))

    def start(self, size: int) -> bytes:
        with self.path.open("rb") as file:
            return file.read(size)

    def count(self, values: int) -> None:
        """Count values read. Raises Refused beyond the limit, since two bytes of a file may take a hundred bytes of memory."""
        self._left -= values
        if self._left < 0:
            raise self.oversized(f"more than {self.values:,} values", "that")

    def oversized(self, found: str, most: str) -> Refused:
        """Refusal of a file that unpacks to `found`, more than `most`."""
        packed = self.path.stat().st_size / MIB
        return Refused(f"{self.path} ({packed:,.1f} MiB) unpacks to {found}; at most {most} is read: split it.")


class _Unpacked(io.RawIOBase):
    def __init__(self, stream: IO[bytes], file: File) -> None:
        self._stream, self._file, self._left = stream, file, file.room

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise self._file.oversized(f"more than {self._file.room // MIB:,} MiB", "that")
        self._file.count(values_in(data))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def values_in(text: bytes) -> int:
    """Approximate number of values in JSON text: commas plus opening brackets."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def start_of_text(file: File) -> bytes:
    with file.open() as opened:
        return opened.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()


def json_rows(file: File) -> Iterator[Line]:
    start = start_of_text(file)
    if start.startswith(b"["):
        return _json_values(file, listed=True)
    return _json_values(file, listed=False) if start.partition(b"\n")[0].strip() == b"{" else _json_lines(file)


def _json_lines(file: File) -> Iterator[Line]:
    with file.open() as opened:
        number = 0
        while line := opened.readline(MOST_ROW_BYTES + 1):
            number += 1
            rest = line
            while len(rest) > MOST_ROW_BYTES and not rest.endswith(b"\n"):
                rest = opened.readline(MOST_ROW_BYTES + 1)
            if not line.strip(b" \t\r\n\xef\xbb\xbf"):
                continue
            shown = line[:SHOWN].decode(errors="replace")
            try:
                if len(line) > MOST_ROW_BYTES:
                    raise ValueError(f"the row is longer than {MOST_ROW_BYTES // MIB} MiB")
                value = read_json(line.decode("utf-8-sig"), unique_object)
            except ValueError as error:
                yield number, f"it is not valid JSON: {error}", shown, None
            else:
                yield _storable(number, shown, value)


def _storable(line: int, shown: str, value: Any) -> Line:
    """The row, or its fault if no table can store it: NaN, infinity or lone surrogates."""
    try:
        return _STRICT.encode((line, None, shown, value)).encode()
    except UnicodeEncodeError:
        return line, "it contains a lone surrogate, which no table can store", shown, None
    except (ValueError, RecursionError) as error:
        return line, f"no table can store it: {error}", shown, None


def _json_values(file: File, listed: bool) -> Iterator[Line]:
    what = "list" if listed else "file"
    with file.open() as opened:
        data = opened.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield data.count(b"\n", 0, error.start) + 1, f"the {what} is not UTF-8: {error}", "", None
        return
    decoder = json.JSONDecoder(object_pairs_hook=unique_object)
    line, counted, place = 1, 0, _skip(text, 0) + listed
    while (place := _skip(text, place)) < len(text) and not (listed and text[place] == "]"):
        line, counted = line + text.count("\n", counted, place), place
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            fault, behind = _fault_of(text, place, error, what)
            yield line, fault, text[place : place + SHOWN], None
            if behind is None:
                return
            place = _skip(text, behind)
            place += listed and text[place : place + 1] == ","
            continue
        shown = text[place : min(end, place + SHOWN)]
        yield (line, TOO_DEEP, shown, None) if is_too_deep(value) else _storable(line, shown, value)
        place = _skip(text, end)
        place += listed and text[place : place + 1] == ","
    if listed and text[place:].strip() != "]":
        line += text.count("\n", counted, place)
        yield line, "the list does not end at the end of the file", text[place : place + SHOWN], None


def _fault_of(text: str, place: int, error: Exception, what: str) -> tuple[str, int | None]:
    """Fault of the row at `place`, and where the row ends if its only fault is a repeated key."""
    if isinstance(error, RepeatedKey):
        try:
            return str(error), json.JSONDecoder().raw_decode(text, place)[1]
        except (ValueError, RecursionError):
            pass
    return f"from here on, the {what} is not valid JSON: {TOO_DEEP if isinstance(error, RecursionError) else error}", None


def _skip(text: str, place: int) -> int:
    found = _BLANK.match(text, place)
    return found.end() if found else place


def read_entries(file: File, options: dict[str, Any]) -> tuple[Head, Iterator[Line]]:
    """Entries of one JSON object as rows `[key, value]`, repeated keys included."""
    text = file.path.read_text(encoding="utf-8-sig", errors="replace")
    try:
        entries = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{file.path} is not valid JSON ({error}); fetch the file again.") from error
    if not isinstance(entries, list) or not all(isinstance(entry, tuple) for entry in entries):
        raise Refused(f"{file.path} is not a JSON object of runs by question number; choose one of FireAct's files.")
    return {"format": "json"}, _entries(text, entries)


def _entries(text: str, entries: list[tuple[str, Any]]) -> Iterator[Line]:
    place, line = 0, 1
    for key, pairs in entries:
        found = max(place, text.find(json.dumps(key, ensure_ascii=False), place))
        place, line = found, line + text.count("\n", place, found)
        shown = text[place : place + SHOWN]
        try:
            value = _from_pairs(pairs)
            yield (line, TOO_DEEP, shown, [key, None]) if is_too_deep(value) else _storable(line, shown, [key, value])
        except (RepeatedKey, RecursionError) as error:
            yield line, str(error), shown, [key, None]


def _from_pairs(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return unique_object([(key, _from_pairs(item)) for key, item in value])
    return [_from_pairs(item) for item in value] if isinstance(value, list) else value


def read_delimited(file: File, options: dict[str, Any]) -> tuple[Head, Iterator[Line]]:
    encoding = options.get("encoding") or _guess_encoding(file)
    try:
        codecs.lookup(encoding)
    except LookupError as error:
        raise Refused(f"unknown encoding {encoding!r:.40}; use for example --encoding cp1252.") from error
    delimiter = options.get("delimiter") or _guess_delimiter(file, encoding)
    if len(delimiter) != 1:
        raise Refused(f"the delimiter {delimiter!r:.40} is not a single character; use for example --delimiter ';' or tab.")
    records = _records(file, delimiter, encoding)
    _, _, header = next(records, (1, "", []))
    if isinstance(header, str):
        raise Refused(f"The header of {file.path} cannot be read ({header}): name the columns there.")
    names = [name.strip() for name in header]
    lowered = [name.lower() for name in names]
    twice = next((name for name in names if name and lowered.count(name.lower()) > 1), None)
    if twice is not None:
        raise Refused(f"{file.path} has two columns {twice!r}: rename one of them.")
    usual = encoding == "utf-8-sig" and delimiter == DELIMITERS[ending(file.path)]
    head = {"format": "delimited", "columns": names, "delimiter": delimiter, "encoding": encoding, "usual": usual}
    return head, (_under(names, *record) for record in records)


def _guess_encoding(file: File) -> str:
    with file.open() as opened:
        sample = opened.read(_SAMPLE)
        for mark, encoding in _BYTE_ORDER_MARKS.items():
            if sample.startswith(mark):
                return encoding
        if sample and sample.count(0) > len(sample) // 4:
            return "utf-16-le" if sample[1:2] == b"\0" else "utf-16-be"
        while piece := opened.read(_SAMPLE) if sample.isascii() else b"":  # continue to the first non-ASCII characters
            sample = piece
    high = b"".join(re.findall(rb"[\x80-\xff]+", sample))
    utf8 = len(re.findall(rb"[\xc2-\xf4][\x80-\xbf]+", sample))
    return "cp1252" if high and not utf8 and _reads_as_cp1252(sample) else "utf-8-sig"


def _reads_as_cp1252(sample: bytes) -> bool:
    """Whether non-ASCII characters are single letters or typographic signs; other encodings produce long runs."""
    text = sample.decode("cp1252", errors="replace")
    letters = re.findall(r"[A-Za-z]([^\x00-\x7f])|([^\x00-\x7f])[A-Za-z]", text)
    quotes = "\u2018\u2019\u201c\u201d\u201e\u2013\u2014\u2026"
    fitting = all(sign.isalpha() or sign in quotes for pair in letters for sign in pair if sign)
    return "\ufffd" not in text and bool(letters) and fitting and not re.search(r"[^\x00-\x7f]{3}", text)


def _guess_delimiter(file: File, encoding: str) -> str:
    """Delimiter that gives the first records equally many cells; the one of the file suffix is preferred."""
    usual = DELIMITERS[ending(file.path)]
    with file.open() as opened:
        text = opened.read(_SAMPLE).decode(encoding, errors="replace").removeprefix("\ufeff")
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


def ending(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _under(header: list[str], line: int, text: str, cells: list[str] | str) -> Line:
    if isinstance(cells, str):
        return line, cells, text, None
    if len(cells) != len(header):
        return line, f"{len(cells)} cells where the header has {len(header)}", text, None
    return line, None, text, dict(zip(header, cells, strict=True))


def _records(file: File, delimiter: str, encoding: str) -> Iterator[tuple[int, str, list[str] | str]]:
    """Each non-blank record: first line number, beginning of its text, and its cells or fault."""
    with file.open() as opened:
        lines = io.TextIOWrapper(opened, encoding=encoding, errors="replace", newline="")
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
            yield number, first.rstrip("\r\n")[:SHOWN], cells
            number += len(read)


def _noted(lines: Iterator[str], read: list[str]) -> Iterator[str]:
    for line in lines:
        read.append(line)
        yield line


def _drained(lines: deque[str]) -> Iterator[str]:
    while lines:
        yield lines.popleft()
