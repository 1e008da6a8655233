"""What the pages of a Parquet file say of themselves: read from their headers, before anything of them is unpacked.

A reader makes room for what the header of a page says and not for what the footer says of all pages; the two need not agree. The headers
stand in Thrift's compact protocol (`parquet-format`: `parquet.thrift`, and `THRIFT-110` for the protocol). What two readers could
take for different things, a field that stands twice or a number beyond its type, is an error here.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CODED = (2, 8)
"""Encodings of values by their places in a dictionary."""
DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY = 6, 7
"""Encodings of texts by their lengths, and by how many letters each has of the one before: those may be any number of times their page."""
_PADDING = 100
"""Bytes that Arrow reads past the end of a column of old writers (PARQUET-816)."""
_UNPACKED, _PACKED = 2, 3
_DICTIONARY = 7
_ENCODINGS = {5: 2, _DICTIONARY: 2, 8: 4}
"""The fields of a page's header for pages of data, of dictionaries, and of data in their second version, and of the encoding in each."""
_VALUES = 1
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_BITS = {_BYTE: 8, _I16: 16, _I32: 32, _I64: 64}
_DEEPEST = 16
_FOOTER = struct.Struct("<I4s")


@dataclass(frozen=True, slots=True)
class Page:
    """One page, as its header has it."""

    chunk: int
    """The place of its chunk among those that were asked about."""
    size: int
    """Its bytes unpacked."""
    values: int
    encoding: int | None
    is_dictionary: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where the pages of one column of one group of rows stand, its values as the footer has them."""

    start: int
    size: int
    values: int


def footer_size(path: Path) -> int:
    """The bytes of a file's footer, as its end says. Raises ValueError where that is no end of such a file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _FOOTER.size))
        end = file.read()
    if len(end) < _FOOTER.size or end[4:] != b"PAR1":
        raise ValueError("it does not end as one")
    return int(_FOOTER.unpack(end)[0])


def pages_of(path: Path, chunks: list[Chunk]) -> Iterator[Page]:
    """Every page that a reader of `chunks` could unpack.

    Raises:
        ValueError: the chunks are larger together than the file, or a header cannot be read in one way alone.
    """
    whole = path.stat().st_size
    if any(chunk.start < 0 or chunk.size < 0 for chunk in chunks) or sum(chunk.size for chunk in chunks) > whole:
        raise ValueError("its columns are larger than it is")
    if not chunks or not whole:
        return
    with ExitStack() as opened:
        file = opened.enter_context(path.open("rb"))
        data = opened.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for number, chunk in enumerate(chunks):
            if chunk.values > 0:  # else a reader looks at none of it
                yield from _pages(data, number, chunk)


def _pages(data: mmap.mmap, number: int, chunk: Chunk) -> Iterator[Page]:
    at, end, seen = chunk.start, chunk.start + chunk.size, 0
    while at < end or (at < min(end + _PADDING, len(data)) and seen < chunk.values):
        try:
            header, at = _struct(data, at, _DEEPEST)
            size, packed = int(header[_UNPACKED]), int(header[_PACKED])
            inner = {field: header[field] for field in _ENCODINGS if field in header}
            values = sum(int(said[_VALUES]) for said in inner.values())
            encodings = [int(said[_ENCODINGS[field]]) for field, said in inner.items()]
        except (IndexError, KeyError, TypeError, struct.error) as error:
            raise ValueError("the header of a page cannot be read") from error
        if min(size, packed, values) < 0 or len(inner) > 1:
            raise ValueError("the header of a page cannot be read")
        is_dictionary = _DICTIONARY in inner
        at, seen = at + packed, seen + (0 if is_dictionary else values)
        yield Page(number, size, values, encodings[0] if encodings else None, is_dictionary)


def _struct(data: Any, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """The numbers of a struct and the structs in it, by their fields, and where it ends; of what else it holds, None."""
    fields: dict[int, Any] = {}
    last = 0
    while True:
        head, at = data[at], at + 1
        kind, step = head & 15, head >> 4
        if kind == _STOP:
            return fields, at
        if step:
            last += step
        else:
            last, at = _number(data, at, _I16)
        if last in fields or not 0 < last < 2**15:
            raise ValueError("a field stands twice, or has no number")
        fields[last], at = (kind == _TRUE, at) if kind in (_TRUE, _FALSE) else _value(data, at, kind, depth)


def _value(data: Any, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if depth == 0:
        raise ValueError("it is nested too deep")
    if kind in (_I16, _I32, _I64):
        return _number(data, at, kind)
    if kind == _STRUCT:
        return _struct(data, at, depth - 1)
    if kind in (_TRUE, _FALSE, _BYTE):
        return None, at + 1
    if kind == _DOUBLE:
        return None, at + 8
    if kind == _BINARY:
        length, at = _varint(data, at, 31)
        return None, at + length
    if kind in (_LIST, _SET):
        return None, _past_list(data, at, depth)
    if kind == _MAP:
        return None, _past_map(data, at, depth)
    raise ValueError("it has a field of no known type")


def _past_list(data: Any, at: int, depth: int) -> int:
    head, at = data[at], at + 1
    length = head >> 4
    if length == 15:
        length, at = _varint(data, at, 31)
    for _ in range(length):
        _, at = _inside(data, at, head & 15, depth - 1)
    return at


def _past_map(data: Any, at: int, depth: int) -> int:
    length, at = _varint(data, at, 31)
    if not length:
        return at
    kinds, at = data[at], at + 1
    for _ in range(length):
        _, at = _inside(data, at, kinds >> 4, depth - 1)
        _, at = _inside(data, at, kinds & 15, depth - 1)
    return at


def _inside(data: Any, at: int, kind: int, depth: int) -> tuple[Any, int]:
    """A value within a list or map, which ends within the file."""
    found = _value(data, at, kind, depth)
    data[found[1] - 1]  # else a list of nothing would be gone through to its end
    return found


def _number(data: Any, at: int, kind: int) -> tuple[int, int]:
    """A whole number in zigzag: the sign is its lowest bit."""
    number, at = _varint(data, at, _BITS[kind])
    return (number >> 1) ^ -(number & 1), at


def _varint(data: Any, at: int, bits: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first."""
    number = shift = 0
    while True:
        byte, at = data[at], at + 1
        number |= (byte & 127) << shift
        if byte < 128 or shift > bits:
            break
        shift += 7
    if number >> bits:
        raise ValueError("a number is too large for its type")
    return number, at
