"""Files of others, read within bounds: how much a small file may unpack to, how long a row may be, how deep JSON may nest.

A few kilobytes of gzip, of an archive or of Parquet can say gigabytes. What is packed may grow to two hundred times its size, and a small
file to 64 MiB, which real data keeps to by far. A file beyond a bound is refused whole, a row beyond one is a fault of the row.
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
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from warehouse.errors import RequestError

if TYPE_CHECKING:
    import pyarrow.parquet

MIB = 2**20
MOST_GROWTH = 200
"""Unpacked bytes for each packed one, beyond `FREE_BYTES`."""
FREE_BYTES = 64 * MIB
MOST_UNPACKED_BYTES = 4096 * MIB
MOST_ROW_BYTES = 128 * MIB
"""Of a line, or of a member of an archive."""
MOST_MEMBERS = 100_000
MOST_DEPTH = 200
"""Lists and objects within each other in JSON; Python's own parser gives up near a thousand."""
_BATCH_ROWS = 1024
_PIECE = 4096
"""Bytes of a member that are unpacked at once: `zipfile` hands as many packed ones to decompressors that know no bound."""
_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".bz2": bz2.open,
    ".tbz2": bz2.open,
    ".xz": lzma.open,
    ".txz": lzma.open,
}


class Oversized(RequestError):
    """A file goes beyond a bound."""


def room_for(path: Path) -> int:
    """The bytes that a packed file may unpack to."""
    return min(MOST_UNPACKED_BYTES, max(FREE_BYTES, MOST_GROWTH * path.stat().st_size))


def unpacked(path: Path) -> IO[bytes]:
    """The content of a file, packed by gzip, bzip2 or xz (by its ending) or not.

    Reading it raises `Oversized` where more comes out than the file has room for, and RequestError where it cannot be unpacked.
    """
    opener = _OPENERS.get(path.suffix)
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
    return read_json(line.decode("utf-8-sig") if isinstance(line, bytes) else line)


def read_json(text: str | bytes) -> Any:
    """The value of JSON. Raises ValueError where it is none, or nested too deep."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if is_too_deep(value):
        raise ValueError(_TOO_DEEP)
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
_TOO_DEEP = f"it is nested deeper than {MOST_DEPTH} levels"


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
    return _TOO_DEEP


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
        self._zip = zipfile.ZipFile(path)
        members, size = self._zip.infolist(), sum(member.file_size for member in self._zip.infolist())
        if len(members) > MOST_MEMBERS or size > room_for(path):
            self._zip.close()
            found, most = f"{len(members):,} members of {size / MIB:,.0f} MiB", f"{MOST_MEMBERS:,} of {room_for(path) // MIB:,} MiB"
            raise _oversized(path, found, most)

    @property
    def names(self) -> list[str]:
        """Its members, each once."""
        return list(dict.fromkeys(self._zip.namelist()))

    def read(self, name: str) -> bytes:
        """The content of a member. Raises ValueError where it is too large, and what `zipfile` raises where it is broken."""
        if self._zip.getinfo(name).file_size > MOST_ROW_BYTES:
            raise ValueError(f"it is larger than {MOST_ROW_BYTES // MIB} MiB")
        with self._zip.open(name) as member:
            return b"".join(iter(lambda: member.read(_PIECE), b""))

    def close(self) -> None:
        """Let go of the file."""
        self._zip.close()


@contextmanager
def open_parquet(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """A Parquet file. Raises RequestError where it is none, and Oversized where its pages are too large."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path) as whole:
            texts = [leaf.path for leaf in _leaves(whole) if leaf.physical_type == "BYTE_ARRAY"]
        with parquet.ParquetFile(path, read_dictionary=texts) as file:  # each text once, however often it stands in the file
            size = sum(chunk.total_uncompressed_size for chunk in _chunks(file))
            if size > room_for(path):
                raise _oversized(path, f"{size / MIB:,.0f} MiB", f"{room_for(path) // MIB:,} MiB")
            yield file
    except (pa.ArrowInvalid, OSError) as error:
        raise RequestError(f"{path} is not a Parquet file ({error}): write it again.") from error


def parquet_rows(file: pyarrow.parquet.ParquetFile, path: Path) -> Iterator[dict[str, Any]]:
    """The rows of an open Parquet file; raises Oversized where they hold more than the file has room for.

    A value that stands in a column a million times stands in the file once, and is read once; what counts are the rows written out.
    """
    left = room_for(path)
    for batch in file.iter_batches(_BATCH_ROWS):
        left -= sum(map(_written_out, batch.columns))
        if left < 0:
            raise _oversized(path, f"more than {room_for(path) // MIB:,} MiB", "that")
        yield from batch.to_pylist()


def _written_out(values: pyarrow.Array) -> int:
    """The bytes of values in which each text stands as often as it is named."""
    import pyarrow as pa
    import pyarrow.compute as compute

    kind = values.type
    if pa.types.is_dictionary(kind):
        sizes = compute.binary_length(values.dictionary) if len(values.dictionary) else pa.array([], pa.int32())
        return int(compute.sum(sizes.cast(pa.int64()).take(values.indices)).as_py() or 0)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _written_out(values.flatten()) if not pa.types.is_map(kind) else _written_out(values.keys) + _written_out(values.items)
    if pa.types.is_struct(kind):
        return sum(map(_written_out, values.flatten()))
    return int(values.nbytes)


def _leaves(file: pyarrow.parquet.ParquetFile) -> Iterator[Any]:
    return (file.schema.column(number) for number in range(len(file.schema)))


def _chunks(file: pyarrow.parquet.ParquetFile) -> Iterator[Any]:
    metadata = file.metadata
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return (group.column(number) for group in groups for number in range(metadata.num_columns))


class _Bounded(io.RawIOBase):
    """A stream of what is unpacked, with the errors of `unpacked`."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream, self._path, self._left = stream, path, room_for(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise RequestError(f"{self._path} cannot be unpacked: {error}.") from error
        self._left -= len(data)
        if self._left < 0:
            raise _oversized(self._path, f"more than {room_for(self._path) // MIB:,} MiB", "that")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _oversized(path: Path, found: str, most: str) -> Oversized:
    packed = path.stat().st_size / MIB
    return Oversized(f"{path} ({packed:,.1f} MiB) unpacks to {found}, and at most {most} is read: cut it into parts.")
