"""Upkeep of a lake: many small files become few, and files that nothing refers to any more go."""

from __future__ import annotations

from datetime import timedelta

from warehouse.catalogue import NAME
from warehouse.lake import Lake

FILE_GRACE = timedelta(days=1)
"""Age below which no file is removed: an open query, or a commit that is being written, may still need it."""


def compact(lake: Lake, expire_after: timedelta | None = None) -> None:
    """Merges small data files; with `expire_after` also forgets snapshots older than that, which ends time travel to them.

    Snapshots are the versions of training sets, so none is forgotten unless asked. Runs beside readers and writers.
    """
    grace = f"older_than => now() - INTERVAL {int(FILE_GRACE.total_seconds())} SECOND"
    steps = [f"CALL ducklake_flush_inlined_data('{NAME}')", f"CALL ducklake_merge_adjacent_files('{NAME}')"]
    if expire_after is not None:
        age = f"older_than => now() - INTERVAL {int(expire_after.total_seconds())} SECOND"
        steps.append(f"CALL ducklake_expire_snapshots('{NAME}', {age})")
    steps += [f"CALL ducklake_cleanup_old_files('{NAME}', {grace})", f"CALL ducklake_delete_orphaned_files('{NAME}', {grace})"]
    for step in steps:
        lake.write(lambda cursor, sql=step: cursor.execute(sql).fetchall())  # type: ignore[misc]
