"""Upkeep of a lake: merging and removing data files, counting searches; snapshots pinned by name, and forgotten when old.

Upkeep changes no query's result and runs alongside readers and writers. A pinned dataset is a SELECT at a snapshot, with a digest that
tells whether its rows are still the same.
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
"""Age below which no file is removed: an open query, or a commit that is being written, may still need it."""
COUNTED_AT_ONCE = 20_000
"""Trajectories whose searches are counted in one commit: two to three seconds in which other writers wait."""


def keep_up(lake: Lake) -> None:
    """Runs after every stage: counts the searches of its trajectories and merges the data files of its commits."""
    count_searches(lake)
    _run(lake, f"CALL ducklake_flush_inlined_data('{CATALOG}')", f"CALL ducklake_merge_adjacent_files('{CATALOG}')")


def compact(lake: Lake) -> None:
    """As `keep_up`, and removes files that no snapshot needs.

    Unknown files, left by interrupted commits, are removed only where the data is in the home: elsewhere they may belong to another lake.
    """
    keep_up(lake)
    grace = f"older_than => now() - INTERVAL {int(FILE_GRACE.total_seconds())} SECOND"
    _run(lake, f"CALL ducklake_cleanup_old_files('{CATALOG}', {grace})")
    if lake.place.storage.data is None:
        _run(lake, f"CALL ducklake_delete_orphaned_files('{CATALOG}', {grace})")


def count_searches(lake: Lake) -> None:
    """Counts the searches of trajectories that are not counted yet, in bounded commits."""
    while lake.write(_count_some) == COUNTED_AT_ONCE:
        pass


def _count_some(cursor: duckdb.DuckDBPyConnection) -> int:
    chosen = f"{UNCOUNTED} ORDER BY id LIMIT {COUNTED_AT_ONCE}"
    recorded = datetime.now(UTC).replace(tzinfo=None)
    sql = f"INSERT INTO search_counts BY NAME SELECT *, ?::TIMESTAMP AS recorded FROM ({counts_of(chosen)})"
    ((counted,),) = cursor.execute(sql, [recorded]).fetchall()
    return int(counted)


def _run(lake: Lake, *steps: str) -> None:
    """Runs each step in its own transaction."""
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
    """A pin, and whether its dataset has the same rows as then; None for a pin without a query."""

    pin: Pin
    same: bool | None


def pin(lake: Lake, name: str, at: int | None = None, query: str | None = None) -> Pin:
    """Keeps the current snapshot, or `at`, under `name`; with a `query`, also the number and digest of its rows.

    Raises RequestError for a name that is taken, a name that is a number, an unknown snapshot or a failing query.
    """
    if not _NAME.fullmatch(name) or name.isdigit():
        raise RequestError(
            f"A pin cannot be called {name!r:.200}: give letters, digits and . : _ - +, and not digits alone, which name a snapshot."
        )
    snapshot = lake.snapshot() if at is None else at
    lake.query("SELECT 1", at=snapshot)  # refuses a snapshot that is not there
    wanted = Pin(name, snapshot) if query is None else Pin(name, snapshot, query, *measure(lake, query, snapshot))
    lake.add([wanted])
    (stored,) = lake.read(Pin, "name = ?", [name])
    if stored != wanted:
        raise RequestError(f"The name {name!r} is pinned to snapshot {stored.snapshot} already; unpin it or choose another name.")
    return wanted


def unpin(lake: Lake, name: str) -> None:
    """Removes a pin; its snapshot stays until it expires. Raises RequestError for an unknown name."""
    if name not in lake.existing(Pin, [name]):
        raise _unknown(lake, name)
    lake.remove(Pin, [name])


def snapshot_of(lake: Lake, text: str) -> int:
    """The snapshot that a number or a pin's name refers to. Raises RequestError for an unknown name."""
    if text.isdecimal():
        return int(text)
    pins = lake.read(Pin, "name = ?", [text])
    if not pins:
        raise _unknown(lake, text)
    return pins[0].snapshot


def check_pins(lake: Lake) -> list[CheckedPin]:
    """Every pin by name, with its dataset measured again."""
    return [CheckedPin(found, _same(lake, found)) for found in lake.read(Pin)]


def measure(lake: Lake, query: str, at: int) -> tuple[int, str]:
    """The number of rows of a SELECT at a snapshot, and a digest of columns and rows that ignores row order.

    The digest sums the halves of each row's MD5.
    """
    inner = query.strip().rstrip(";")
    described = lake.query(f"DESCRIBE {inner}", at=at)
    if "column_name" not in described.column_names:  # without a query it lists the tables
        raise RequestError(f"A dataset is one SELECT, and this is none: {query.strip()[:200]!r}")
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
    """Expires snapshots older than `age`, which ends time travel to them, and returns how many.

    Kept are those that are pinned, that a policy was trained on, that an unfinished run began with, and the latest.
    """
    expiring = lake.query(_EXPIRING, [int(age.total_seconds())]).column("id").to_pylist()
    if expiring:
        lake.write(lambda cursor: cursor.execute(f"CALL ducklake_expire_snapshots('{CATALOG}', versions => {expiring})").fetchall())
    return len(expiring)
