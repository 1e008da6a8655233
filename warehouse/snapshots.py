"""Snapshots: kept by name and as datasets, forgotten when old.

A dataset is a SELECT at a snapshot, with a digest that says whether its rows are still the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from warehouse.connections import CATALOG
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.lake import Lake
from warehouse.records import Pin

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
    """A pin, and whether its dataset has the rows that it had; None for a pin without a query."""

    pin: Pin
    same: bool | None


def pin(lake: Lake, name: str, at: int | None = None, query: str | None = None) -> Pin:
    """Keeps the present snapshot, or `at`, under `name`; with a `query` also the number and the digest of its rows there.

    Raises `RequestError` for a name that is taken by another pin, a name that is a number or none, an unknown snapshot and a query that
    fails.
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
    """Lets go of a pin; its snapshot stays until it is too old. Raises `RequestError` for an unknown name."""
    if name not in lake.existing(Pin, [name]):
        raise _unknown(lake, name)
    lake.remove(Pin, [name])


def snapshot_of(lake: Lake, text: str) -> int:
    """The snapshot that a number or the name of a pin stands for; raises `RequestError` for an unknown name."""
    if text.isdecimal():
        return int(text)
    pins = lake.read(Pin, "name = ?", [text])
    if not pins:
        raise _unknown(lake, text)
    return pins[0].snapshot


def check_pins(lake: Lake) -> list[CheckedPin]:
    """Every pin by name, the digests of datasets worked out again."""
    return [CheckedPin(found, _same(lake, found)) for found in lake.read(Pin)]


def measure(lake: Lake, query: str, at: int) -> tuple[int, str]:
    """The number of rows of a SELECT at a snapshot, and a digest of its columns and rows, whatever the order of these.

    The digest sums the halves of each row's MD5: rows that differ in anything, or in how often they stand there, change it.
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
    """Forgets snapshots older than `age`, which ends time travel to them, and returns how many.

    Those stay that are pinned, that a policy was trained on or a run that is not completed began with, and the latest.
    """
    expiring = lake.query(_EXPIRING, [int(age.total_seconds())]).column("id").to_pylist()
    if expiring:
        lake.write(lambda cursor: cursor.execute(f"CALL ducklake_expire_snapshots('{CATALOG}', versions => {expiring})").fetchall())
    return len(expiring)
