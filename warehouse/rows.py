"""Rows of the lake from records and records from rows, over one DuckDB cursor: what is already there, inserts, deletes, reads.

Nothing here opens a transaction; `lake.py` decides what belongs together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from warehouse.catalogue import NAME
from warehouse.records import Trajectory, Turn
from warehouse.schema import TABLE_OF, TRAJECTORIES, TURNS, OwnedTurn, Record, Table

Cursor = duckdb.DuckDBPyConnection
Key = tuple[Any, ...]

_BATCH_ROWS = 20_000
"""Rows decoded at a time."""


def grouped(records: Iterable[Record]) -> dict[type, dict[Key, Record]]:
    """Records by kind and by key; of several with one key the last counts."""
    groups: dict[type, dict[Key, Record]] = defaultdict(dict)
    for record in records:
        groups[type(record)][TABLE_OF[type(record)].key_of(record)] = record
    return groups


def existing_keys(cursor: Cursor, table: Table[Any], keys: Sequence[Key]) -> set[Key]:
    """Those of `keys` that have a row."""
    columns = ", ".join(f'"{name}"' for name in table.key)
    with _registered(cursor, table.encode_keys(keys)) as wanted:
        rows = cursor.execute(f"SELECT {columns} FROM {wanted} SEMI JOIN {NAME}.{table.name} USING ({columns})").fetchall()
    return set(rows)


def insert(cursor: Cursor, table: Table[Any], records: Sequence[Any]) -> None:
    """Appends a row for each record; the turns of trajectories go with them."""
    if not records:
        return
    recorded = pa.repeat(pa.scalar(datetime.now(UTC).replace(tzinfo=None), pa.timestamp("us")), len(records))
    with _registered(cursor, table.encode(records).append_column("recorded", recorded)) as batch:
        cursor.execute(f"INSERT INTO {NAME}.{table.name} BY NAME SELECT * FROM {batch}")
    if table is TRAJECTORIES:
        insert(cursor, TURNS, [OwnedTurn(trajectory.id, turn) for trajectory in records for turn in trajectory.turns])


def delete(cursor: Cursor, table: Table[Any], keys: Sequence[Key]) -> None:
    """Removes the rows with `keys`; the turns of trajectories go with them."""
    with _registered(cursor, table.encode_keys(keys)) as batch:
        match = " AND ".join(f'{table.name}."{name}" = {batch}."{name}"' for name in table.key)
        cursor.execute(f"DELETE FROM {NAME}.{table.name} USING {batch} WHERE {match}")
    if table is TRAJECTORIES:
        delete(cursor, TURNS, keys)


def select(cursor: Cursor, table: Table[Any], where: str, parameters: Sequence[Any], version: str) -> list[Any]:
    """The records whose rows meet `where`, in the order of their keys."""
    order = ", ".join(f'"{name}"' for name in table.key)
    columns = ", ".join(f'"{name}"' for name in table.stored_fields)
    sql = f"SELECT {columns} FROM {NAME}.{table.name} {version} WHERE {where} ORDER BY {order}"
    values = _read(cursor, sql, parameters, table, table.stored_fields)
    if table is TRAJECTORIES:
        turns = _turns(cursor, values["id"], version)
        return [_trajectory(row, turns) for row in zip(*values.values(), strict=True)]
    return [table.record(*row) for row in zip(*values.values(), strict=True)]


def _trajectory(row: Sequence[Any], turns: dict[str, list[Turn]]) -> Trajectory:
    fields: dict[str, Any] = dict(zip(TRAJECTORIES.stored_fields, row, strict=True))
    own = sorted(turns.get(fields["id"], ()), key=lambda turn: turn.index)
    return Trajectory(turns=tuple(own), **fields)


def _turns(cursor: Cursor, ids: Sequence[str], version: str) -> dict[str, list[Turn]]:
    """The turns of the trajectories `ids`, unordered, by trajectory."""
    names = ("trajectory_id", *TURNS.stored_fields)
    columns = ", ".join(f'"{name}"' for name in names)
    found: dict[str, list[Turn]] = defaultdict(list)
    with _registered(cursor, pa.table({"trajectory_id": pa.array(ids, pa.string())})) as wanted:
        sql = f"SELECT {columns} FROM {NAME}.turns {version} SEMI JOIN {wanted} USING (trajectory_id)"
        values = _read(cursor, sql, (), TURNS, names)
    for owner, *fields in zip(*values.values(), strict=True):
        found[owner].append(Turn(*fields))
    return found


def _read(cursor: Cursor, sql: str, parameters: Sequence[Any], table: Table[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {name: [] for name in names}
    for batch in cursor.execute(sql, list(parameters)).to_arrow_reader(_BATCH_ROWS):
        for name, column in table.decode(batch).items():
            values[name].extend(column)
    return values


@contextmanager
def _registered(cursor: Cursor, batch: pa.Table) -> Iterator[str]:
    """Shows `batch` to SQL under the name that this yields."""
    name = "flywheel_batch"
    cursor.register(name, batch)
    try:
        yield name
    finally:
        cursor.unregister(name)
