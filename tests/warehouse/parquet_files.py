"""Parquet files made by hand: their pages, headers and footers say whatever a test wants (`parquet-format`, `parquet.thrift`)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from warehouse.foreign import MIB

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


MEMORY, DAMAGED, READ = "of memory to be read", "not a readable Parquet", ""
"""How a file ends: it needs more memory than the child has, its parser refuses it, or it has rows within bounds all the same."""
WHO = page(text(b"Who?"), 1)
MOST = 2**31 - 1


def zstd(content: bytes, blanks: int = 0) -> bytes:
    """Some content, and megabytes of blanks after it, packed."""
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as packed:
        packed.write(content)
        for _ in range(blanks):
            packed.write(b" " * MIB)
    return out.getvalue().to_pybytes()


def blank(megabytes: int) -> bytes:
    """A file of one text of blanks, of which the footer says that it has a hundred bytes."""
    size = megabytes * MIB
    return flat(page(zstd(struct.pack("<I", size), megabytes), 1, size=size + 4), packing=ZSTD)


def padded() -> bytes:
    """The column ends after its first page, and Arrow reads on for a hundred bytes, for a writer that is said to be old."""
    more = page(text(b"x" * 30), 1, size=MOST)
    group = {1: [chunk(4, len(WHO), 2, [b"question"])], 2: ("i64", 100), 3: ("i64", 2)}
    return whole(WHO + more, footer(FLAT, [group], 2, b"parquet-mr version 1.2.8"))


def dictionary() -> bytes:
    words, codes = page(text(b"Who?"), MOST, dictionary=True), page(first_word(1), 1, encoding=DICTIONARY_CODES)
    column = chunk(4 + len(words), len(words + codes), 1, [b"question"], dictionary=4)
    return whole(words + codes, footer(FLAT, [{1: [column], 2: ("i64", 100), 3: ("i64", 1)}]))


def long_codes() -> bytes:
    """A word of thirty megabytes in a dictionary, and a million times its place: of a type that Arrow writes out."""
    words, codes = page(zstd(b"", 30), 1, size=30 * MIB, dictionary=True), zstd(first_word(10**6))
    codes = page(codes, 10**6, size=5, encoding=DICTIONARY_CODES)
    column = chunk(4 + len(words), len(words + codes), 10**6, [b"question"], ZSTD, dictionary=4, kind=FIXED)
    listed = [FLAT[0], {1: ("i32", FIXED), 2: ("i32", 30 * MIB), 3: ("i32", 0), 4: b"question"}]
    return whole(words + codes, footer(listed, [{1: [column], 2: ("i64", 100), 3: ("i64", 10**6)}], 10**6))


def mixed(levels: Callable[[int], bytes], columns: list[Any], path: list[bytes], count: int, rows: int, short: int = 0) -> bytes:
    """A text of thirty megabytes behind short ones in a dictionary, named again and again, and one outside of the dictionary."""
    size = 30 * MIB
    words = page(zstd(text(b"") * short + struct.pack("<I", size), 30), short + 1, size=4 * short + size + 4, dictionary=True)
    place = b"\x0a" + varint(count << 1) + short.to_bytes(2, "little")  # ten bits each, all in one run
    pages = words
    for content, encoding, values in ((levels(count) + place, DICTIONARY_CODES, count), (levels(1) + text(b"x"), PLAIN, 1)):
        pages += page(zstd(content), values, size=len(content), encoding=encoding)
    column = chunk(4 + len(words), len(pages), count + 1, path, ZSTD, dictionary=4)
    return whole(pages, footer(columns, [{1: [column], 2: ("i64", 100), 3: ("i64", rows)}], rows))


def headed(*fields: tuple[int, Any], after: bytes = b"") -> bytes:
    """A file of one page with these fields of its header, each as it stands there."""
    data = zstd(text(b"Who?"))
    given = [field for field in header(8, len(data), 1) if field[0] not in dict(fields)]
    return flat(thrift([*given, *fields])[:-1] + after + b"\0" + data, packing=ZSTD)


def wide() -> bytes:
    """Nine groups of 90,000 columns that are nothing, of which Arrow would make half a gigabyte."""
    group = b"\x19\xfc" + varint(90_000) + b"\x26\0\0" * 90_000 + b"\x16\0\x16\0\0"
    return whole(b"", footer(FLAT, [])[:-2] + b"\x9c" + group * 9 + b"\0")


FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "unpacks to half a gigabyte": (lambda: blank(500), MEMORY),
    "unpacks to more than there is room for": (lambda: blank(100), "unpacks to more than 64 MiB"),
    "says two gigabytes and holds none": (lambda: flat(page(text(b"Who?"), 1, size=MOST)), READ),
    "has a list of a hundred million nulls": (lambda: lists(page(in_one_list(10**8, 2), 10**8)), MEMORY),
    "says two billion words": (dictionary, MEMORY),
    "says one long word a million times": (long_codes, MEMORY),
    "goes on past its column": (padded, READ),
    "says less than nothing": (lambda: flat(page(text(b"Who?"), 1, size=-5)), DAMAGED),
    "says two sizes": (lambda: headed((2, ("i32", MOST)), (2, ("i64", 8))), MEMORY),
    "says a size by the number of another field": (lambda: headed((2, ("i32", MOST)), (2 + 2**16, ("i32", 8))), READ),
    "says a size beyond its type": (lambda: headed((2, ("i32", 2**31 + 4))), DAMAGED),
    "is nested without end": (lambda: headed(after=b"\x1c" * 50_000), DAMAGED),
    "lists a billion things that take no room": (lambda: headed(after=b"\x19\xf0" + varint(MOST)), DAMAGED),
    "lists a million columns and has none": (
        lambda: whole(b"", footer(FLAT, [])[:-2] + b"\x1c\x19\xfc" + varint(999_999) + b"\0" * 10),
        DAMAGED,
    ),
    "has a footer of columns that are nothing": (wide, READ),
    "ends otherwise": (lambda: b"PAR1" + b"x" * 100 + struct.pack("<I", 50) + b"PARX", DAMAGED),
    "is nothing": (lambda: b"", DAMAGED),
    "has lists of texts that each repeat the one before": (
        lambda: lists(page(repeated_text(b"Who?", 200), 200, encoding=DELTA_BYTE_ARRAY)),
        DAMAGED,
    ),
}  # fmt: skip


def repeating() -> bytes:
    """A megabyte of blanks, said two thousand times in two kilobytes, as the encoding is meant to."""
    content = repeated_text(b" " * MIB, 2000)
    return flat(page(zstd(content), 2000, size=len(content), encoding=DELTA_BYTE_ARRAY), 2000, ZSTD, rows=2000)


BOMBS: dict[str, Callable[[], bytes]] = {
    "texts that each repeat the one before": repeating,
    "a text that is named again and again": lambda: mixed(lambda count: b"", FLAT, [b"question"], 900_000, 900_001, short=999),
    "a text that is named again and again in lists": lambda: mixed(in_one_list, LISTS, [b"question", b"list", b"element"], 900_000, 2),
}
