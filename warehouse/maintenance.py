"""Upkeep of a lake: many small files become few, old snapshots are forgotten, and files that nothing refers to any more go."""

from __future__ import annotations

from datetime import timedelta

from warehouse.catalogue import NAME
from warehouse.lake import Lake

FILE_GRACE = timedelta(days=1)
"""Age below which no file is removed: an open query, or a commit that is being written, may still need it."""

_EXPIRING = f"""
SELECT snapshot_id AS id FROM ducklake_snapshots('{NAME}')
WHERE snapshot_time < now() - to_seconds(?) AND snapshot_id < (SELECT max(snapshot_id) FROM ducklake_snapshots('{NAME}'))
    AND snapshot_id NOT IN (
        SELECT snapshot FROM pins UNION SELECT snapshot FROM policies WHERE snapshot IS NOT NULL
        UNION SELECT snapshot_before FROM runs WHERE state <> 'completed' AND snapshot_before IS NOT NULL
    )
ORDER BY id
"""


def merge(lake: Lake) -> None:
    """Makes few data files of many small ones, which every later look into the lake has to list. Runs beside readers and writers."""
    _run(lake, f"CALL ducklake_flush_inlined_data('{NAME}')", f"CALL ducklake_merge_adjacent_files('{NAME}')")


def compact(lake: Lake) -> None:
    """Merges small data files and removes those that no snapshot needs. Runs beside readers and writers."""
    merge(lake)
    grace = f"older_than => now() - INTERVAL {int(FILE_GRACE.total_seconds())} SECOND"
    _run(
        lake,
        f"CALL ducklake_cleanup_old_files('{NAME}', {grace})",
        f"CALL ducklake_delete_orphaned_files('{NAME}', {grace})",
    )


def retain(lake: Lake, age: timedelta) -> int:
    """Forgets snapshots older than `age`, which ends time travel to them, and returns how many.

    Those stay that are pinned, that a policy was trained on or a run that is not completed began with, and the latest.
    """
    expiring = lake.query(_EXPIRING, [int(age.total_seconds())]).column("id").to_pylist()
    if expiring:
        _run(lake, f"CALL ducklake_expire_snapshots('{NAME}', versions => {expiring})")
    return len(expiring)


def _run(lake: Lake, *steps: str) -> None:
    """Each step in a transaction of its own: none of them needs the others to hold."""
    for step in steps:
        lake.write(lambda cursor, sql=step: cursor.execute(sql).fetchall())  # type: ignore[misc]
