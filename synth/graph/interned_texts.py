"""Interned texts: each text once, known by its number, in three arrays instead of an object each.

Ten million facts name millions of entities. As Python strings in a dictionary they would take most of the memory that a whole graph
may take; here a text costs its bytes and sixteen more. The way from a text to its number is a hash table of CRC-32 values whose
buckets lie one after the other.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_RECENT = 50_000
"""Texts whose numbers are at hand without a look into the table: some 5 MiB."""


class _Numbered(Sequence[str]):
    """Texts by number; a subclass has their number in `_length`, and gives one by `_text`."""

    __slots__ = ("_length",)
    _length: int

    @abstractmethod
    def _text(self, number: int) -> str:
        """The text of a number that there is."""

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[str]: ...
    def __getitem__(self, number: int | slice) -> str | Sequence[str]:
        if isinstance(number, slice):
            return [self._text(place) for place in range(*number.indices(self._length))]
        if not -self._length <= number < self._length:
            raise IndexError(number)
        return self._text(number % self._length)


class Texts(_Numbered):
    """Different texts in a fixed order; `number` finds the place of one, by a table that is built when it is first asked."""

    __slots__ = ("_bytes", "_offsets", "_read", "_recent", "_table")

    def __init__(self, texts: pa.Array) -> None:
        plain = texts.cast(pa.large_string())
        offsets = np.frombuffer(plain.buffers()[1], np.int64)[plain.offset : plain.offset + len(plain) + 1]
        data = plain.buffers()[2]
        held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
        self._bytes: NDArray[np.uint8] = held[offsets[0] : offsets[-1]].copy()
        self._offsets: NDArray[np.int64] = offsets - offsets[0]
        self._length = len(plain)
        self._table: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None
        self._recent: dict[str, int | None] = {}
        self._read: dict[int, str] = {}

    def _text(self, number: int) -> str:
        text = self._read.get(number)
        if text is None:
            if len(self._read) >= _RECENT:
                self._read.clear()
            text = self._read[number] = self._at(number).decode()
        return text

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(self._length))

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self.number(text) is not None

    def number(self, text: str) -> int | None:
        """The number of a text; None where it is none of these. Those asked for of late are at hand."""
        if text in self._recent:
            return self._recent[text]
        if len(self._recent) >= _RECENT:
            self._recent.clear()
        self._recent[text] = found = self._looked_up(text)
        return found

    def _looked_up(self, text: str) -> int | None:
        if self._table is None:
            self._table = _buckets(self._bytes, self._offsets)
        (starts, members), wanted = self._table, text.encode()
        bucket = zlib.crc32(wanted) & (len(starts) - 2)
        for place in range(starts.item(bucket), starts.item(bucket + 1)):
            number = members.item(place)
            if self._at(number) == wanted:
                return number
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in (self._bytes, self._offsets, *(self._table or ())))

    def _at(self, number: int) -> bytes:
        return self._bytes[self._offsets.item(number) : self._offsets.item(number + 1)].tobytes()


class Prefix(_Numbered):
    """The first `length` of some texts, as a view."""

    __slots__ = ("_texts",)

    def __init__(self, texts: Texts, length: int) -> None:
        self._texts, self._length = texts, length

    def _text(self, number: int) -> str:
        return self._texts[number]


def intern(*columns: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, list[NDArray[np.int32]]]:
    """The different texts of all columns in the order in which they first occur, and each column as numbers of them."""
    chunks = [chunk.cast(pa.large_string()) for column in columns for chunk in _chunks(column)]
    encoded = pc.dictionary_encode(pa.chunked_array(chunks, pa.large_string())).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # what combine_chunks gives for no chunk at all
        return pa.array([], pa.large_string()), [np.zeros(0, np.int32) for _ in columns]
    numbers = encoded.indices.to_numpy().astype(np.int32, copy=False)
    ends = np.cumsum([0, *(len(column) for column in columns)])
    return encoded.dictionary, [numbers[start:end] for start, end in pairwise(ends)]


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _buckets(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Where each bucket begins, and the members of all buckets; there are as many buckets as the next power of two."""
    count = 1 << max(len(offsets) - 2, 1).bit_length()
    view = data.data
    ends = offsets.tolist()
    hashes = np.fromiter((zlib.crc32(view[start:end]) for start, end in pairwise(ends)), np.uint32, len(offsets) - 1)
    bucket = (hashes & np.uint32(count - 1)).astype(np.int32)
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(bucket, minlength=count), out=starts[1:])
    return starts, np.argsort(bucket, kind="stable").astype(np.int32)
