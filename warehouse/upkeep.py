"""Maintain a lake: merge and remove data files, count searches, pin snapshots by name, expire old ones.

Upkeep changes no query result and runs concurrently with readers and writers. A pinned dataset is a SELECT at a snapshot, with a digest
that shows whether its rows are unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import duckdb

from warehouse.connections import CATALOG
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.lake import Lake
from warehouse.records import Pin
from warehouse.views.searches import UNCOUNTED, counts_of

FILE_GRACE = timedelta(days=1)
"""Minimum age of removed files: open queries and commits in progress may still need younger ones."""
COUNTED_AT_ONCE = 20_000
"""Trajectories counted per commit; other writers wait for two to three seconds."""


def keep_up(lake: Lake) -> None:
    """Count searches and merge data files of recent commits; run after every stage."""
    count_searches(lake)
    _run(lake, f"CALL ducklake_flush_inlined_data('{CATALOG}')", f"CALL ducklake_merge_adjacent_files('{CATALOG}')")


def compact(lake: Lake) -> None:
    """Like `keep_up`, and remove files that no snapshot needs.

    Unknown files, left by interrupted commits, are removed only in the home: elsewhere they may belong to another lake.
    """
    keep_up(lake)
    grace = f"older_than => now() - INTERVAL {int(FILE_GRACE.total_seconds())} SECOND"
    _run(lake, f"CALL ducklake_cleanup_old_files('{CATALOG}', {grace})")
    if lake.place.storage.data is None:
        _run(lake, f"CALL ducklake_delete_orphaned_files('{CATALOG}', {grace})")


def count_searches(lake: Lake) -> None:
    """Count searches of uncounted trajectories, in bounded commits."""
    while lake.write(_count_some) == COUNTED_AT_ONCE:
        pass


def _count_some(cursor: duckdb.DuckDBPyConnection) -> int:
    chosen = f"{UNCOUNTED} ORDER BY id LIMIT {COUNTED_AT_ONCE}"
    recorded = datetime.now(UTC).replace(tzinfo=None)
    sql = f"INSERT INTO search_counts BY NAME SELECT *, ?::TIMESTAMP AS recorded FROM ({counts_of(chosen)})"
    ((counted,),) = cursor.execute(sql, [recorded]).fetchall()
    return int(counted)


def _run(lake: Lake, *steps: str) -> None:
    for step in steps:
        lake.write(lambda cursor, sql=step: cursor.execute(sql).fetchall())  # type: ignore[misc]


_EXPIRING = f"""
SELECT snapshot_id AS id FROM ducklake_snapshots('{CATALOG}')
WHERE snapshot_time < now() - to_seconds(?) AND snapshot_id < (SELECT max(snapshot_id) FROM ducklake_snapshots('{CATALOG}'))
    AND snapshot_id NOT IN (
        SELECT snapshot FROM pins UNION SELECT snapshot FROM policies WHERE snapshot IS NOT NULL
        UNION SELECT snapshot_before FROM runs WHERE state <> 'completed' AND snapshot_before IS NOT NULL
    )
ORDER BY id
"""


_NAME = re.compile(r"\w[\w.:+-]{0,99}")


@dataclass(frozen=True, slots=True)
class CheckedPin:
    """A pin, and whether its dataset is unchanged; None for a pin without a query."""

    pin: Pin
    same: bool | None


def pin(lake: Lake, name: str, at: int | None = None, query: str | None = None) -> Pin:
    """Keep the latest snapshot, or `at`, under `name`; with `query`, also the number and digest of its rows.

    Raises RequestError for a taken or purely numeric name, an unknown snapshot or a failing query.
    """
    if not _NAME.fullmatch(name) or name.isdigit():
        raise RequestError(
            f"{name!r:.200} is not a valid pin name: use letters, digits and . : _ - +, but not digits alone, which name a snapshot."
        )
    snapshot = lake.snapshot() if at is None else at
    lake.query("SELECT 1", at=snapshot)  # raises for an unknown snapshot
    wanted = Pin(name, snapshot) if query is None else Pin(name, snapshot, query, *measure(lake, query, snapshot))
    lake.add([wanted])
    (stored,) = lake.read(Pin, "name = ?", [name])
    if stored != wanted:
        raise RequestError(f"The name {name!r} is already pinned to snapshot {stored.snapshot}; unpin it or choose another name.")
    return wanted


def unpin(lake: Lake, name: str) -> None:
    """Remove a pin; its snapshot remains until it expires. Raises RequestError for an unknown name."""
    if name not in lake.existing(Pin, [name]):
        raise _unknown(lake, name)
    lake.remove(Pin, [name])


def snapshot_of(lake: Lake, text: str) -> int:
    """Snapshot of a number or pin name. Raises RequestError for an unknown name."""
    if text.isdecimal():
        return int(text)
    pins = lake.read(Pin, "name = ?", [text])
    if not pins:
        raise _unknown(lake, text)
    return pins[0].snapshot


def check_pins(lake: Lake) -> list[CheckedPin]:
    """All pins by name, with their datasets measured again."""
    return [CheckedPin(found, _same(lake, found)) for found in lake.read(Pin)]


def measure(lake: Lake, query: str, at: int) -> tuple[int, str]:
    """Number of rows of a SELECT at a snapshot, and a digest of columns and rows that ignores row order.

    The digest sums the halves of each row's MD5. Raises RequestError if `query` is not one SELECT.
    """
    inner = query.strip().rstrip(";")
    described = lake.query(f"DESCRIBE {inner}", at=at)
    if "column_name" not in described.column_names:  # DESCRIBE without a query lists tables
        raise RequestError(f"A dataset must be a single SELECT, and this is not: {query.strip()[:200]!r}")
    columns = described.select(["column_name", "column_type"]).to_pylist()
    halves = "sum(md5_number_lower(row)::HUGEINT)::VARCHAR AS low, sum(md5_number_upper(row)::HUGEINT)::VARCHAR AS high"
    sql = f"SELECT count(*) AS n, {halves} FROM (SELECT to_json(t)::VARCHAR AS row FROM (\n{inner}\n) t)"
    (figures,) = lake.query(sql, at=at).to_pylist()
    return int(figures["n"]), digest([[list(column.values()) for column in columns], figures])


def _same(lake: Lake, found: Pin) -> bool | None:
    return None if found.query is None else measure(lake, found.query, found.snapshot) == (found.n_rows, found.digest)


def _unknown(lake: Lake, name: str) -> RequestError:
    known = ", ".join(found.name for found in lake.read(Pin)) or "none yet"
    return RequestError(f"The lake in {lake.place.home} has no pin {name!r}; it has {known}.")


def expire_snapshots(lake: Lake, age: timedelta) -> int:
    """Expire snapshots older than `age`, which ends time travel to them; return their number.

    Pinned snapshots, those a policy was trained on, those an unfinished run started from, and the latest are kept.
    """
    expiring = lake.query(_EXPIRING, [int(age.total_seconds())]).column("id").to_pylist()
    if expiring:
        lake.write(lambda cursor: cursor.execute(f"CALL ducklake_expire_snapshots('{CATALOG}', versions => {expiring})").fetchall())
    return len(expiring)
