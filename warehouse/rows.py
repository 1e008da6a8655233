"""Convert records to rows and back over one DuckDB cursor: existing keys, inserts, deletes, reads. Callers manage transactions."""

from __future__ import annotations

import gc
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, islice
from math import ceil
from operator import itemgetter
from typing import Any

import duckdb
import pyarrow as pa

from warehouse.columns import PIECE_ROWS, Table
from warehouse.connections import CATALOG
from warehouse.records import Call, Image, Trajectory, Turn
from warehouse.schema import (
    IMAGES,
    SEARCH_COUNTS,
    TABLE_OF,
    TOOL_CALLS,
    TRAJECTORIES,
    TURNS,
    Record,
    owned_calls,
    owned_images,
    owned_turns,
)

Cursor = duckdb.DuckDBPyConnection
Key = tuple[Any, ...]

_BATCH_ROWS = 20_000
_PIECES_AHEAD = 6
"""Maximum pieces encoded ahead of DuckDB: a few tens of megabytes of turns."""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection during bulk conversion, which otherwise took a fifth of the time to store ten thousand trajectories."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@gc_paused()
def grouped(records: Iterable[Record]) -> dict[type, dict[Key, Record]]:
    """Records by kind and key; the last record with a key wins."""
    kinds: dict[type, list[Record]] = defaultdict(list)
    for record in records:
        kinds[type(record)].append(record)
    return {kind: dict(zip(TABLE_OF[kind].keys_of(own), own, strict=True)) for kind, own in kinds.items()}


def existing_keys(cursor: Cursor, table: Table[Any], keys: Sequence[Key]) -> set[Key]:
    """Those of `keys` that have a row."""
    columns = ", ".join(f'"{name}"' for name in table.key)
    key_range, bounds = _key_range(table, keys)
    with _registered(cursor, table.encode_keys(keys)) as wanted:
        # In this order DuckDB reads only the row groups that can contain a wanted key.
        sql = f"SELECT {columns} FROM {CATALOG}.{table.name} SEMI JOIN {wanted} USING ({columns}) WHERE {key_range}"
        rows = cursor.execute(sql, bounds).fetchall()
    return set(rows)


def _key_range(table: Table[Any], keys: Sequence[Key]) -> tuple[str, list[str]]:
    """Condition with parameters that all `keys` satisfy, so that DuckLake skips files outside the range.

    DuckLake cannot search for text with a NUL; such keys are searched everywhere.
    """
    first = [key[0] for key in keys]
    if not first or not all(isinstance(value, str) and "\x00" not in value for value in first):
        return "TRUE", []
    return f'"{table.key[0]}" BETWEEN ? AND ?', [min(first), max(first)]


@gc_paused()
def insert(cursor: Cursor, table: Table[Any], records: Sequence[Any]) -> None:
    """Append a row per record; for trajectories also their turns, calls and new images."""
    if not records:
        return
    if table is TRAJECTORIES and (images := owned_images(records)):
        known = existing_keys(cursor, IMAGES, list(images))
        insert(cursor, IMAGES, [image for key, image in images.items() if key not in known])
    recorded = datetime.now(UTC).replace(tzinfo=None)
    parts = _parts(table, records)
    with ThreadPoolExecutor(1, "encode") as encoder:
        pieces = _encoded_ahead(encoder, (piece for part, own in parts for piece in part.pieces(own)))
        for part, own in parts:
            batches = chain.from_iterable(piece.to_batches() for piece in islice(pieces, ceil(len(own) / PIECE_ROWS)))
            with _registered(cursor, pa.RecordBatchReader.from_batches(part.encode([]).schema, batches)) as batch:
                cursor.execute(f"INSERT INTO {CATALOG}.{part.name} BY NAME SELECT *, ?::TIMESTAMP AS recorded FROM {batch}", [recorded])


def _parts(table: Table[Any], records: Sequence[Any]) -> list[tuple[Table[Any], Sequence[Any]]]:
    if table is not TRAJECTORIES:
        return [(table, records)]
    parts = ((TRAJECTORIES, records), (TURNS, owned_turns(records)), (TOOL_CALLS, owned_calls(records)))
    return [(part, own) for part, own in parts if own]


def _encoded_ahead(encoder: Executor, pieces: Iterator[Callable[[], pa.Table]]) -> Iterator[pa.Table]:
    """The pieces in order; another thread encodes the next ones while DuckDB writes, which releases the GIL."""
    waiting = deque(encoder.submit(piece) for piece in islice(pieces, _PIECES_AHEAD))
    while waiting:
        piece = waiting.popleft().result()
        waiting.extend(encoder.submit(following) for following in islice(pieces, 1))
        yield piece


def delete(cursor: Cursor, table: Table[Any], keys: Sequence[Key]) -> None:
    """Delete the rows with `keys`; for trajectories also turns, calls and search counts, but not images, which turns share."""
    with _registered(cursor, table.encode_keys(keys)) as batch:
        match = " AND ".join(f'{table.name}."{name}" = {batch}."{name}"' for name in table.key)
        cursor.execute(f"DELETE FROM {CATALOG}.{table.name} USING {batch} WHERE {match}")
    if table is TRAJECTORIES:
        for part in (TURNS, TOOL_CALLS, SEARCH_COUNTS):
            delete(cursor, part, keys)


@gc_paused()
def select(cursor: Cursor, table: Table[Any], where: str, parameters: Sequence[Any], version: str) -> list[Any]:
    """Records whose rows satisfy `where`, ordered by key. `version` is empty or an AT clause."""
    names = table.stored_fields
    order = ", ".join(f'"{name}"' for name in table.key)
    columns = ", ".join(f'"{name}"' for name in names)
    sql = f"SELECT {columns} FROM {CATALOG}.{table.name} {version} WHERE {where} ORDER BY {order}"
    try:
        values = _read(cursor, sql, parameters, table, names)
    except duckdb.CatalogException:  # a snapshot before the lake had tables
        if version:
            return []
        raise
    if not values[names[0]]:
        return []
    rows = zip(*values.values(), strict=True)
    if table is TRAJECTORIES:
        turns = _turns(cursor, values["id"], version)
        return [_trajectory(dict(zip(names, row, strict=True)), turns) for row in rows]
    return [table.record(*row) for row in rows]


def _trajectory(fields: dict[str, Any], turns: dict[str, list[Turn]]) -> Trajectory:
    own = sorted(turns.get(fields["id"], ()), key=lambda turn: turn.index)
    return Trajectory(turns=tuple(own), **fields)


def _turns(cursor: Cursor, ids: Sequence[str], version: str) -> dict[str, list[Turn]]:
    calls = _calls(cursor, ids, version)
    found: dict[str, list[Turn]] = defaultdict(list)
    names = TURNS.stored_fields
    rows = [
        (row[0], dict(zip(names, row[1:], strict=True)))
        for row in _rows_of_trajectories(cursor, TURNS, ids, version, ("trajectory_id", *names))
    ]
    images = _images(cursor, {digest for _, fields in rows for digest in fields["images"]}, version)
    for owner, fields in rows:
        fields["images"] = tuple(images[digest] for digest in fields["images"])
        found[owner].append(Turn(calls=tuple(calls.get((owner, fields["index"]), ())), **fields))
    return found


def _images(cursor: Cursor, digests: set[str], version: str) -> dict[str, Image]:
    if not digests:
        return {}
    names = IMAGES.stored_fields
    with _registered(cursor, IMAGES.encode_keys([(digest,) for digest in sorted(digests)])) as wanted:
        columns = ", ".join(f'"{name}"' for name in names)
        values = _read(
            cursor, f"SELECT {columns} FROM {CATALOG}.{IMAGES.name} {version} SEMI JOIN {wanted} USING (digest)", (), IMAGES, names
        )
    return {row[0]: Image(*row) for row in zip(*values.values(), strict=True)}


def _calls(cursor: Cursor, ids: Sequence[str], version: str) -> dict[tuple[str, int], list[Call]]:
    found: dict[tuple[str, int], list[Call]] = defaultdict(list)
    names = ("trajectory_id", "turn_index", "call_index", *TOOL_CALLS.stored_fields)
    for owner, turn, _, *fields in sorted(_rows_of_trajectories(cursor, TOOL_CALLS, ids, version, names), key=itemgetter(0, 1, 2)):
        found[owner, turn].append(Call(*fields))
    return found


def _rows_of_trajectories(
    cursor: Cursor, table: Table[Any], ids: Sequence[str], version: str, names: Sequence[str]
) -> list[tuple[Any, ...]]:
    columns = ", ".join(f'"{name}"' for name in names)
    with _registered(cursor, pa.table({"trajectory_id": pa.array(ids, pa.string())})) as wanted:
        sql = f"SELECT {columns} FROM {CATALOG}.{table.name} {version} SEMI JOIN {wanted} USING (trajectory_id)"
        values = _read(cursor, sql, (), table, names)
    return list(zip(*values.values(), strict=True))


def _read(cursor: Cursor, sql: str, parameters: Sequence[Any], table: Table[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {name: [] for name in names}
    for batch in cursor.execute(sql, list(parameters)).to_arrow_reader(_BATCH_ROWS):
        for name, column in table.decode(batch).items():
            values[name].extend(column)
    return values


@contextmanager
def _registered(cursor: Cursor, batch: pa.Table | pa.RecordBatchReader) -> Iterator[str]:
    name = "flywheel_batch"
    cursor.register(name, batch)
    try:
        yield name
    finally:
        cursor.unregister(name)
