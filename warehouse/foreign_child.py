"""Child process of `foreign.py`: parses untrusted files and writes their rows as JSON to stdout.

A request is one line of JSON on stdin. The reply is a sequence of frames, each four bytes of length and a JSON object: `head` (format and
columns), any number of `rows` (lists of line, fault, beginning of the text, value), then `done`, or `refused` with a sentence. The parent
enforces the limits on memory, time and reply size; limits here only select the error message and isolate faulty rows.
"""

from __future__ import annotations

import base64
import csv
import json
import lzma
import os
import resource
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import date, time
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from warehouse.foreign_text import (
    DELIMITERS,
    MIB,
    MOST_ROW_BYTES,
    SHOWN,
    File,
    Head,
    Line,
    Refused,
    ending,
    json_rows,
    read_delimited,
    read_entries,
    start_of_text,
    values_in,
)  # fmt: skip
from warehouse.json_text import read_json

if TYPE_CHECKING:
    import pyarrow

MOST_MEMBERS = 100_000
BYTES_MARK = "\udcff"
"""Prefix of strings that encode bytes in base64; it cannot occur in a file's text."""
_FRAME_BYTES = MIB
_BATCH_ROWS, _BATCH_BYTES = 512, 32 * MIB


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep library output out of the frames
    csv.field_size_limit(MOST_ROW_BYTES)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _limit(request["memory"], request["seconds"])
        try:
            _answer(out, request)
        except Refused as error:
            _send(out, json.dumps({"refused": str(error)}).encode())
        except MemoryError:
            os._exit(MEMORY_STATUS)
        out.flush()


MEMORY_STATUS = 77
"""Exit status of a child that ran out of memory."""


def _limit(memory: int, seconds: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds, hard))


def _answer(out: IO[bytes], request: dict[str, Any]) -> None:
    path = Path(request["path"])
    try:
        file = File(path, request["room"], request["values"])
        head, rows = _READERS[request["kind"]](file, request["options"])
        _send(out, json.dumps({"head": head}).encode())
        _send_rows(out, rows, path)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise Refused(f"{path} cannot be read: {error}.") from error
        raise Refused(f"{path} cannot be unpacked: {error}.") from error
    _send(out, b'{"done": true}')


def _send(out: IO[bytes], frame: bytes) -> None:
    out.write(struct.pack(">I", len(frame)) + frame)


def _send_rows(out: IO[bytes], rows: Iterable[Line], path: Path) -> None:
    encoder = json.JSONEncoder(ensure_ascii=False, check_circular=False, default=_plain)
    batch: list[bytes] = []
    size = 0
    for row in rows:
        try:
            encoded = row if isinstance(row, bytes) else encoder.encode(row).encode("utf-8", "surrogatepass")
        except RecursionError as error:
            raise Refused(f"{path} has a row that is nested too deeply: flatten it.") from error
        if len(encoded) > MOST_ROW_BYTES + 2 * SHOWN + 100:
            raise Refused(f"{path} has a row of {len(encoded) / MIB:,.0f} MiB; the limit is {MOST_ROW_BYTES // MIB} MiB: shorten it.")
        batch.append(encoded)
        size += len(encoded)
        if size >= _FRAME_BYTES:
            _send(out, b'{"rows": [' + b",".join(batch) + b"]}")
            batch, size = [], 0
    _send(out, b'{"rows": [' + b",".join(batch) + b"]}")


def _plain(value: Any) -> str:
    """JSON representation of a column value: marked bytes, ISO 8601 dates and times, decimals as text."""
    if isinstance(value, bytes):
        return BYTES_MARK + base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _read_table(file: File, options: dict[str, Any]) -> tuple[Head, Iterator[Line]]:
    """Rows of a table, whose format is detected by its first bytes or, for text, by file name."""
    if file.path.is_dir():
        return {"format": "saved"}, _numbered(chain.from_iterable(_arrow_rows(file, part) for part in _saved_files(file.path)))
    start = file.start(6)
    if start.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return {"format": "arrow"}, _numbered(_arrow_rows(file, file.path))
    if start.startswith(b"PAR1"):
        return _read_parquet(file)
    if ending(file.path) in DELIMITERS:
        return read_delimited(file, options)
    if options.get("text") == "json" or file.path.suffix.lower() in (".json", ".jsonl", ".gz") or start_of_text(file)[:1] in (b"{", b"["):
        return {"format": "json"}, json_rows(file)
    if file.path.suffix.lower() == ".parquet":
        return _read_parquet(file)
    raise Refused(f"{file.path} has an unknown format; choose {options['known']}.")


def _numbered(rows: Iterable[dict[str, Any]]) -> Iterator[Line]:
    for number, row in enumerate(rows, start=1):
        yield number, None, "", row


# Arrow and Parquet


def _read_parquet(file: File) -> tuple[Head, Iterator[Line]]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        opened = parquet.ParquetFile(file.path, pre_buffer=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(file.path, error) from error
    about = opened.metadata
    size = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    at_once = max(1, min(_BATCH_ROWS, _BATCH_BYTES * max(1, about.num_rows) // max(1, size)))
    batches = opened.iter_batches(at_once, use_threads=False)
    return {"format": "parquet", "columns": list(opened.schema_arrow.names)}, _numbered(_column_rows(batches, file))


def _arrow_rows(file: File, path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.ipc as ipc

    with pa.memory_map(str(path)) as source:
        source.seek(8 if source.read(6) == b"ARROW1" else 0)
        yield from _column_rows(_sliced(ipc, source), file)


def _sliced(ipc: Any, source: Any) -> Iterator[pyarrow.RecordBatch]:
    for batch in ipc.open_stream(source):
        batch.validate(full=True)  # not checked elsewhere: offsets must stay within the batch
        for start in range(0, len(batch), _BATCH_ROWS):
            yield batch.slice(start, _BATCH_ROWS)


def _column_rows(batches: Iterator[pyarrow.RecordBatch], file: File) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    checked = False
    try:
        for batch in batches:
            checked = checked or _check_names(batch.schema, file.path)
            rows.clear()
            before = sys.getallocatedblocks()
            rows = batch.to_pylist()
            file.count(max(len(rows), sys.getallocatedblocks() - before))
            yield from rows
    except pa.ArrowMemoryError as error:
        raise MemoryError from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(file.path, error) from error


def _check_names(fields: Iterable[pyarrow.Field], path: Path) -> bool:
    """Reject duplicate column or object key names, since a row would keep only one of them."""
    import pyarrow as pa

    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Refused(f"{path} has two columns {twice!r}: rename one of them.")
    for field in fields:
        kind = field.type
        while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            _check_names([kind.field(place) for place in range(kind.num_fields)], path)
    return True


def _unreadable(path: Path, error: Exception) -> Refused:
    return Refused(f"{path} is not a readable Parquet or Arrow table ({' '.join(str(error).split())[:200]}): write it again.")


def _saved_files(path: Path) -> list[Path]:
    """Arrow files of a folder saved by `datasets`; with several splits, those of `train`."""
    if (path / "dataset_dict.json").is_file():
        splits = _listed_texts(path / "dataset_dict.json", "splits")
        if "train" not in splits:
            raise Refused(f"{path} has no split train, only {', '.join(splits)}: choose the folder of one of them.")
        path = path / "train"
    files = [path / name for name in _listed_texts(path / "state.json", "_data_files", "filename")]
    outside = [file for file in files if not file.resolve().is_relative_to(path.resolve()) or not file.is_file()]
    if outside:
        raise Refused(f"{path / 'state.json'} names {str(outside[0])!r:.200}, which is not a file in that folder: save the data set again.")
    return files


def _listed_texts(file: Path, key: str, inner: str | None = None) -> list[str]:
    try:
        listed = read_json(file.read_bytes())[key]
        texts = [one if inner is None else one[inner] for one in listed]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{file} is not a readable file of `datasets` ({type(error).__name__}): save the data set again.") from error
    if not all(isinstance(text, str) for text in texts):
        raise Refused(f"{file} has a value other than a string under {key}: save the data set again.")
    return texts


# Archives


def _read_inspect(file: File, options: dict[str, Any]) -> tuple[Head, Iterator[Line]]:
    """Samples of an Inspect AI log as JSON text, without events; the head has the other members, or the rest of the object."""
    try:
        if zipfile.is_zipfile(file.path):
            return _inspect_archive(file)
        data = read_json(file.path.read_bytes())
        samples = data.pop("samples", None) or []
        rows = ((place, f"sample {place}", sample) for place, sample in enumerate(samples, start=1))
        return {"format": "json", "members": {"": json.dumps(data)}}, (_inspect_sample(*row, lambda value: value) for row in rows)
    except (Refused, MemoryError):
        raise
    except Exception as error:  # broken archives and unexpected JSON raise anything
        raise Refused(f"{file.path} is not a readable Inspect log ({type(error).__name__}: {error}).") from error


def _inspect_archive(file: File) -> tuple[Head, Iterator[Line]]:
    with suppress(ImportError):
        import zipfile_zstd  # noqa: F401  adds to `zipfile` the compression that Inspect writes
    archive = zipfile.ZipFile(file.path)
    members, size = archive.infolist(), sum(member.file_size for member in archive.infolist())
    if len(members) > MOST_MEMBERS or size > file.room:
        found = f"{len(members):,} members of {size / MIB:,.0f} MiB"
        raise file.oversized(found, f"{MOST_MEMBERS:,} of {file.room // MIB:,} MiB")
    left = file.values

    def read(name: str) -> bytes:
        nonlocal left
        if archive.getinfo(name).file_size > MOST_ROW_BYTES:
            raise ValueError(f"it is larger than {MOST_ROW_BYTES // MIB} MiB")
        content = archive.read(name)
        if (count := values_in(content)) > left:
            raise ValueError(f"with it, more than {file.values:,} values would be read, the limit for an archive of this size")
        left -= count
        return content

    names = list(dict.fromkeys(archive.namelist()))
    frame = {name: read(name).decode() for name in names if name == "header.json" or _is_journal(name)}
    samples = (name for name in names if name.startswith("samples/") and name.endswith(".json"))
    rows = (_inspect_sample(place, name, name, lambda one: read_json(read(one))) for place, name in enumerate(samples, start=1))
    return {"format": "eval", "members": frame}, rows


def _is_journal(name: str) -> bool:
    """Whether a member belongs to the journal, which replaces the header until a log is finished."""
    return name.startswith("_journal/") and not name.startswith("_journal/summaries/")


def _inspect_sample(place: int, name: str, sample: Any, read: Callable[[Any], Any]) -> Line:
    try:
        kept = {key: value for key, value in read(sample).items() if key not in ("events", "events_data", "timelines")}
        return place, None, name, json.dumps(kept)
    except MemoryError:
        raise
    except Exception as error:  # broken members raise anything; only this sample fails
        return place, f"the sample cannot be read: {type(error).__name__}: {error}".encode(errors="replace").decode(), name, None


def _read_tar(file: File, options: dict[str, Any]) -> tuple[Head, Iterator[Line]]:
    return {"format": "tar"}, _tar_members(file)


def _tar_members(file: File) -> Iterator[Line]:
    try:
        with file.open() as opened, tarfile.open(fileobj=opened, mode="r|") as archive:
            for place, member in enumerate(archive, start=1):
                if member.isfile():
                    content = archive.extractfile(member)
                    yield place, None, "", [member.name, member.size, b"" if content is None else content.read()]
    except tarfile.TarError as error:
        raise Refused(f"{file.path} cannot be read as a tar archive: {error}.") from error


def _read_zip(file: File, options: dict[str, Any]) -> tuple[Head, Iterator[Line]]:
    try:
        archive = zipfile.ZipFile(file.path)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise Refused(f"{file.path} cannot be read as a zip archive: {error}.") from error
    size = sum(member.file_size for member in archive.infolist())
    if size > file.room:
        raise file.oversized(f"members of {size / MIB:,.0f} MiB", f"{file.room // MIB:,} MiB")
    return {"format": "zip"}, _zip_members(archive, file)


def _zip_members(archive: zipfile.ZipFile, file: File) -> Iterator[Line]:
    try:
        for place, member in enumerate(archive.infolist(), start=1):
            if not member.is_dir():
                yield place, None, "", [member.filename, member.file_size, archive.read(member)]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:  # damaged, unknown compression, encrypted
        raise Refused(f"{file.path} cannot be read as a zip archive: {error}.") from error


_READERS: dict[str, Callable[[File, dict[str, Any]], tuple[Head, Iterator[Line]]]] = {
    "table": _read_table, "entries": read_entries, "inspect": _read_inspect, "tar": _read_tar, "zip": _read_zip,
}  # fmt: skip


if __name__ == "__main__":
    main()
