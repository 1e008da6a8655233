"""Parquet files made by hand: their pages, headers and footers say whatever a test wants (`parquet-format`, `parquet.thrift`)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

BYTE_ARRAY, FIXED, PLAIN, RLE, DICTIONARY_CODES, DELTA_BYTE_ARRAY = 6, 7, 0, 3, 8, 7
UNPACKED, ZSTD = 0, 6
_KINDS = {"i32": 5, "i64": 6}
FLAT: list[Any] = [{4: b"r", 5: ("i32", 1)}, {1: ("i32", BYTE_ARRAY), 3: ("i32", 0), 4: b"question", 6: ("i32", 0)}]
"""One column of texts, as a footer lists it."""
LISTS: list[Any] = [
    {4: b"r", 5: ("i32", 1)}, {3: ("i32", 1), 4: b"question", 5: ("i32", 1), 6: ("i32", 3)}, {3: ("i32", 2), 4: b"list", 5: ("i32", 1)},
    {1: ("i32", BYTE_ARRAY), 3: ("i32", 1), 4: b"element", 6: ("i32", 0)},
]  # fmt: skip
"""One column of lists of texts."""


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def encoded(value: Any) -> tuple[int, bytes]:
    """The type and the bytes of a value in Thrift's compact protocol: bytes, a struct by its fields, a list, ("i32" or "i64", number)."""
    if isinstance(value, bytes):
        return 8, varint(len(value)) + value
    if isinstance(value, dict):
        return 12, thrift(sorted(value.items()))
    if isinstance(value, list):
        inner = [encoded(one) for one in value]
        kind = inner[0][0] if inner else 12
        head = bytes([len(value) << 4 | kind]) if len(value) < 15 else bytes([0xF0 | kind]) + varint(len(value))
        return 9, head + b"".join(data for _, data in inner)
    kind, number = value
    return _KINDS[kind], zigzag(number)


def thrift(fields: Sequence[tuple[int, Any]]) -> bytes:
    """A struct whose fields stand in this order, by their whole numbers."""
    return b"".join(bytes([encoded(value)[0]]) + zigzag(field) + encoded(value)[1] for field, value in fields) + b"\0"


def text(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def header(size: int, packed: int, values: int, encoding: int = PLAIN, dictionary: bool = False) -> list[tuple[int, Any]]:
    special: tuple[int, Any] = (5, {1: ("i32", values), 2: ("i32", encoding), 3: ("i32", RLE), 4: ("i32", RLE)})
    if dictionary:
        special = (7, {1: ("i32", values), 2: ("i32", encoding)})
    return [(1, ("i32", 2 if dictionary else 0)), (2, ("i32", size)), (3, ("i32", packed)), special]


def page(content: bytes, values: int, size: int | None = None, encoding: int = PLAIN, dictionary: bool = False) -> bytes:
    """A page that says `size` of itself."""
    return thrift(header(len(content) if size is None else size, len(content), values, encoding, dictionary)) + content


def footer(columns: Sequence[Any], groups: Any, rows: int = 1, made_by: bytes | None = None) -> bytes:
    fields = [(1, ("i32", 2)), (2, list(columns)), (3, ("i64", rows)), (4, groups)]
    return thrift([*fields, (6, made_by)] if made_by else fields)


def chunk(
    start: int,
    size: int,
    values: int,
    path: Sequence[bytes],
    packing: int = UNPACKED,
    dictionary: int | None = None,
    kind: int = BYTE_ARRAY,
) -> Any:
    """Which says that it is small."""
    said: dict[int, Any] = {1: ("i32", kind), 2: [("i32", 0), ("i32", 3)], 3: list(path), 4: ("i32", packing), 5: ("i64", values)}
    said |= {6: ("i64", 100), 7: ("i64", size), 9: ("i64", start)}
    return {2: ("i64", 4), 3: said | ({} if dictionary is None else {11: ("i64", dictionary)})}


def whole(body: bytes, foot: bytes) -> bytes:
    return b"PAR1" + body + foot + struct.pack("<I", len(foot)) + b"PAR1"


def flat(pages: bytes, values: int = 1, packing: int = UNPACKED, rows: int = 1) -> bytes:
    group = {1: [chunk(4, len(pages), values, [b"question"], packing)], 2: ("i64", 100), 3: ("i64", rows)}
    return whole(pages, footer(FLAT, [group], rows))


def lists(pages: bytes, values: int = 1) -> bytes:
    group = {1: [chunk(4, len(pages), values, [b"question", b"list", b"element"])], 2: ("i64", 100), 3: ("i64", 1)}
    return whole(pages, footer(LISTS, [group]))


def in_one_list(count: int, level: int = 3) -> bytes:
    """The levels of one list of so many texts, each in one run; those of level 2 are null and take no room."""
    repeated, defined = b"\2\0" + varint((count - 1) << 1) + b"\1", varint(count << 1) + bytes([level])
    return text(repeated) + text(defined)


def first_word(count: int) -> bytes:
    return b"\1" + varint(count << 1) + b"\0"


def repeated_text(content: bytes, count: int) -> bytes:
    """The content of a page, in DELTA_BYTE_ARRAY, that says one text `count` times: what each has of the one before, and what is new."""
    long, width = len(content), len(content).bit_length()
    block = b"\x80\1\4" + varint(count)
    rest = b"\0" * (5 * (count // 128))  # blocks of 128 differences, all of them none
    shared = block + zigzag(0) + zigzag(0) + bytes([width, 0, 0, 0]) + long.to_bytes(4 * width, "little") + rest
    all_but_first = sum(long << width * place for place in range(1, 32))
    full = sum(long << width * place for place in range(32))
    packed = b"".join(number.to_bytes(4 * width, "little") for number in (all_but_first, full, full, full))
    new = block + zigzag(long) + zigzag(-long) + bytes([width] * 4) + packed + rest
    return shared + new + content
