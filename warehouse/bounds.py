"""Files of others, read within bounds: how much a small file may unpack to, how long a row may be, how deep JSON may nest.

A few kilobytes of gzip, of an archive or of Parquet can say gigabytes. What is packed may grow to two hundred times its size, and a small
file to 64 MiB, which real data keeps to by far. Values are counted as well, for the two letters of an empty object take a hundred bytes
here: four may stand in each packed byte, and two million in a small file. A file beyond a bound is refused whole, a row beyond one is a
fault of the row.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from warehouse.errors import RequestError

MIB = 2**20
MOST_GROWTH = 200
"""Unpacked bytes for each packed one, beyond `FREE_BYTES`."""
FREE_BYTES = 64 * MIB
VALUES_A_BYTE = 4
"""Values for each packed byte, beyond `FREE_VALUES`."""
FREE_VALUES = 2_000_000
MOST_UNPACKED_BYTES = 4096 * MIB
MOST_ROW_BYTES = 128 * MIB
"""Of a line, or of a member of an archive."""
MOST_MEMBERS = 100_000
MOST_DEPTH = 200
"""Lists and objects within each other in JSON; Python's own parser gives up near a thousand."""
TOO_DEEP = f"it is nested deeper than {MOST_DEPTH} levels"
"""What is wrong with what stands deeper."""
_PIECE = 4096
"""Bytes of a member that are unpacked at once: `zipfile` hands as many packed ones to decompressors that know no bound."""
_OPENERS: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
"""What opens a packed file, by its first bytes."""


class Oversized(RequestError):
    """A file goes beyond a bound."""


def room_for(path: Path) -> int:
    """The bytes that a packed file may unpack to."""
    return min(MOST_UNPACKED_BYTES, max(FREE_BYTES, MOST_GROWTH * path.stat().st_size))


def values_for(path: Path) -> int:
    """The values, counted one by one, that a packed file may hold."""
    return max(FREE_VALUES, VALUES_A_BYTE * path.stat().st_size)


def unpacked(path: Path) -> IO[bytes]:
    """The content of a file, packed by gzip, bzip2 or xz (by its first bytes) or not.

    Reading it raises `Oversized` where more comes out than the file has room for, or more values of JSON, and RequestError where it cannot
    be unpacked.
    """
    with path.open("rb") as file:
        beginning = file.read(8)
    opener = next((opener for magic, opener in _OPENERS.items() if beginning.startswith(magic)), None)
    if opener is None:
        return path.open("rb")
    return cast(IO[bytes], io.BufferedReader(_Bounded(opener(path), path)))


def lines_of(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, numbered from 1; of one that is too long just more than `MOST_ROW_BYTES`, which `read_row` then refuses."""
    number = 0
    while line := file.readline(MOST_ROW_BYTES + 1):
        number += 1
        rest = line
        while len(rest) > MOST_ROW_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MOST_ROW_BYTES + 1)
        yield number, line


def read_row(line: bytes | str) -> Any:
    """The value of one row of JSON. Raises ValueError where it is none, too long or too deep."""
    if len(line) > MOST_ROW_BYTES:
        raise ValueError(f"the row is longer than {MOST_ROW_BYTES // MIB} MiB")
    return read_json(line.decode("utf-8-sig") if isinstance(line, bytes) else line, unique_object)


class RepeatedKey(ValueError):
    """A key stands twice in one object of JSON: which value holds would be a guess."""


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of its pairs. Raises RepeatedKey where a key stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKey(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.60} stands twice in one object")
    return found


def read_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of JSON; `pairs` makes the objects. Raises ValueError where it is none, or nested too deep."""
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    if is_too_deep(value):
        raise ValueError(TOO_DEEP)
    return value


def read_text_json(text: str) -> Any:
    """The value of JSON whose texts can be stored. Raises ValueError as `read_json` does, and where one holds half of a surrogate pair."""
    value = read_json(text)
    if _HALF.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("a text of it holds half of a surrogate pair") from error
    return value


_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON may name half of a surrogate pair, or a whole one."""


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects stand within each other more than `MOST_DEPTH` times."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [inner for inner in _within(level) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def why_too_large(value: Any) -> str | None:
    """Why a value, one text of which may stand in many places, would be too large or too deep as JSON; None where it would not."""
    level, letters = [value], 0
    for _ in range(MOST_DEPTH + 1):
        inside = list(_within(level))
        letters += sum(len(one) for one in inside if isinstance(one, str))
        if letters > MOST_ROW_BYTES:
            return f"it holds more than {MOST_ROW_BYTES // MIB} MiB of text"
        level = [inner for inner in inside if isinstance(inner, dict | list)]
        if not level:
            return None
    return TOO_DEEP


def _count(text: bytes) -> int:
    """About how many values stand in JSON: each but the first of a list or object has a comma before it."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _within(level: list[Any]) -> Iterator[Any]:
    for outer in level:
        yield from outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()


class Archive:
    """A zip archive. What it says of the sizes of its members is held to: no member gives more than that.

    Raises:
        Oversized: it has too many members, or they are too large together.
        zipfile.BadZipFile: it is no archive.
    """

    def __init__(self, path: Path) -> None:
        self._zip, self._path, self._values = zipfile.ZipFile(path), path, values_for(path)
        members, size = self._zip.infolist(), sum(member.file_size for member in self._zip.infolist())
        if len(members) > MOST_MEMBERS or size > room_for(path):
            self._zip.close()
            found, most = f"{len(members):,} members of {size / MIB:,.0f} MiB", f"{MOST_MEMBERS:,} of {room_for(path) // MIB:,} MiB"
            raise oversized(path, found, most)

    @property
    def names(self) -> list[str]:
        """Its members, each once."""
        return list(dict.fromkeys(self._zip.namelist()))

    def read(self, name: str) -> bytes:
        """The content of a member.

        Raises:
            ValueError: it is too large, or the members that were read hold more values than the archive has room for.
            Exception: whatever `zipfile` raises where it is broken.
        """
        if self._zip.getinfo(name).file_size > MOST_ROW_BYTES:
            raise ValueError(f"it is larger than {MOST_ROW_BYTES // MIB} MiB")
        with self._zip.open(name) as member:
            content = b"".join(iter(lambda: member.read(_PIECE), b""))
        if (count := _count(content)) > self._values:
            raise ValueError(f"with it more than {values_for(self._path):,} values would be read of an archive of this size")
        self._values -= count
        return content

    def close(self) -> None:
        """Let go of the file."""
        self._zip.close()


class _Bounded(io.RawIOBase):
    """A stream of what is unpacked, with the errors of `unpacked`."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream, self._path, self._left, self._values = stream, path, room_for(path), values_for(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise RequestError(f"{self._path} cannot be unpacked: {error}.") from error
        self._left -= len(data)
        if self._left < 0:
            raise oversized(self._path, f"more than {room_for(self._path) // MIB:,} MiB", "that")
        self._values -= _count(data)
        if self._values < 0:
            raise oversized(self._path, f"more than {values_for(self._path):,} values", "that")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def oversized(path: Path, found: str, most: str) -> Oversized:
    """What is said of a file that unpacks to what was `found`, and at `most` what is read of it."""
    packed = path.stat().st_size / MIB
    return Oversized(f"{path} ({packed:,.1f} MiB) unpacks to {found}, and at most {most} is read: cut it into parts.")
