"""SHA-256 checksums of a lake's data files, recorded on write and compared on request.

A writer records its files after each commit and, when it closes the lake, all files without a checksum (merged files, and those of a killed
writer). Checksums detect faulty disks and copies, not attackers, who can change them too. Data outside the home is not checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import duckdb

from warehouse.connections import CATALOG, connect_or_copy, connect_unlocked
from warehouse.errors import RequestError, first_line
from warehouse.storage import Place

_FILES = f"""
SELECT path, file_size_bytes FROM __ducklake_metadata_{CATALOG}.ducklake_data_file
UNION ALL SELECT path, file_size_bytes FROM __ducklake_metadata_{CATALOG}.ducklake_delete_file
ORDER BY 1
"""
_LATEST = f"SELECT max(snapshot_id) FROM __ducklake_metadata_{CATALOG}.ducklake_snapshot"
_SINCE = f"""
SELECT schemas.path, tables.path, files.path
FROM (
    SELECT table_id, path, begin_snapshot FROM __ducklake_metadata_{CATALOG}.ducklake_data_file
    UNION ALL SELECT table_id, path, begin_snapshot FROM __ducklake_metadata_{CATALOG}.ducklake_delete_file
) files
JOIN __ducklake_metadata_{CATALOG}.ducklake_table tables USING (table_id)
JOIN __ducklake_metadata_{CATALOG}.ducklake_schema schemas USING (schema_id)
WHERE files.begin_snapshot > ?
"""


class FileState(StrEnum):
    same = "same"
    changed = "changed"
    missing = "missing"
    unrecorded = "unrecorded"


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A data file in the catalogue, by its path within the lake's data."""

    path: str
    state: FileState


def latest_snapshot(cursor: duckdb.DuckDBPyConnection) -> int:
    ((number,),) = cursor.execute(_LATEST).fetchall()
    return int(number)


def files_since(cursor: duckdb.DuckDBPyConnection, snapshot: int, place: Place) -> list[Path]:
    return [place.data.joinpath(*parts) for parts in cursor.execute(_SINCE, [snapshot]).fetchall()]


def keep_digests_of(files: Sequence[Path], place: Place) -> None:
    """Append the checksums of new files."""
    lines = [json.dumps({"file": path.name, "sha256": _digest_of(path)}) + "\n" for path in files]
    if lines:
        with place.digests.open("a") as file:
            file.write("\n" + "".join(lines))  # terminates a torn line of a killed writer


def keep_digests(connection: duckdb.DuckDBPyConnection, place: Place) -> int:
    """Record missing checksums and return their number. Concurrent writers add identical entries."""
    known, there = read_digests(place), _files_there(place)
    new = [path for name, _ in _committed(connection) if name not in known and (path := there.get(name)) is not None]
    keep_digests_of(new, place)
    return len(new)


def check_lake(place: Place, record: bool = False) -> tuple[list[CheckedFile], int]:
    """Check every data file of a lake, even one too broken to open; `record` adds missing checksums. Returns files and number added.

    Raises RequestError if the data is outside the home or the catalogue cannot be read.
    """
    if place.storage.data is not None:
        raise RequestError(f"{place.home} keeps its data in {place.storage.data}; checksums are only recorded for local data.")
    try:
        connection, there, copied = connect_or_copy(place, connect_unlocked)
    except duckdb.Error as error:
        raise RequestError(f"The catalogue of {place.home} cannot be read: {first_line(error)}") from error
    try:
        recorded = keep_digests(connection, there) if record else 0
        return check_files(connection, there), recorded
    finally:
        connection.close()
        if copied is not None:
            copied.cleanup()


def check_files(connection: duckdb.DuckDBPyConnection, place: Place) -> list[CheckedFile]:
    """Compare every data file, including those of earlier snapshots, with its recorded size and checksum."""
    known, there = read_digests(place), _files_there(place)
    return [_checked(name, size, there.get(name), known.get(name), place) for name, size in _committed(connection)]


def read_digests(place: Place) -> dict[str, str]:
    """Recorded checksums by file name; torn lines are skipped."""
    found: dict[str, str] = {}
    for line in place.digests.read_text().splitlines() if place.digests.is_file() else ():
        try:
            entry = json.loads(line)
            found.setdefault(entry["file"], entry["sha256"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found


def _checked(name: str, size: int, path: Path | None, digest: str | None, place: Place) -> CheckedFile:
    if path is None:
        return CheckedFile(name, FileState.missing)
    if path.stat().st_size != size or (digest is not None and _digest_of(path) != digest):
        state = FileState.changed
    else:
        state = FileState.unrecorded if digest is None else FileState.same
    return CheckedFile(str(path.relative_to(place.data)), state)


def _committed(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[str, int]]:
    for path, size in connection.cursor().execute(_FILES).fetchall():
        yield Path(path).name, int(size)


def _files_there(place: Place) -> dict[str, Path]:
    return {path.name: path for path in place.data.rglob("*.parquet")}


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
