"""The upkeep of a lake: few data files in the place of many, those gone that nothing needs, and counted once what takes long to count.

Nothing that a query gives changes by it; later queries are quicker. All of it runs beside readers and writers.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import duckdb

from warehouse.connections import CATALOG
from warehouse.lake import Lake
from warehouse.views.searches import UNCOUNTED, counts_of

FILE_GRACE = timedelta(days=1)
"""Age below which no file is removed: an open query, or a commit that is being written, may still need it."""
COUNTED_AT_ONCE = 20_000
"""Trajectories whose searches are counted in one commit: two to three seconds in which other writers wait."""


def keep_up(lake: Lake) -> None:
    """What the end of every stage does: counts the searches of its trajectories, and merges the files of its commits."""
    count_searches(lake)
    _run(lake, f"CALL ducklake_flush_inlined_data('{CATALOG}')", f"CALL ducklake_merge_adjacent_files('{CATALOG}')")


def compact(lake: Lake) -> None:
    """The same, and removes the files that no snapshot needs.

    Files that the catalogue does not know, of commits that were cut short, go where the data lies in the home: under a prefix elsewhere
    they may be those of another lake.
    """
    keep_up(lake)
    grace = f"older_than => now() - INTERVAL {int(FILE_GRACE.total_seconds())} SECOND"
    _run(lake, f"CALL ducklake_cleanup_old_files('{CATALOG}', {grace})")
    if lake.place.storage.data is None:
        _run(lake, f"CALL ducklake_delete_orphaned_files('{CATALOG}', {grace})")


def count_searches(lake: Lake) -> None:
    """Counts how the trajectories searched that wait for it, some of them in each commit."""
    while lake.write(_count_some) == COUNTED_AT_ONCE:
        pass


def _count_some(cursor: duckdb.DuckDBPyConnection) -> int:
    """Counts the next of them, whose ids stand together, and says how many those are."""
    chosen = f"{UNCOUNTED} ORDER BY id LIMIT {COUNTED_AT_ONCE}"
    recorded = datetime.now(UTC).replace(tzinfo=None)
    sql = f"INSERT INTO search_counts BY NAME SELECT *, ?::TIMESTAMP AS recorded FROM ({counts_of(chosen)})"
    ((counted,),) = cursor.execute(sql, [recorded]).fetchall()
    return int(counted)


def _run(lake: Lake, *steps: str) -> None:
    """Each step in a transaction of its own: none of them needs the others to hold."""
    for step in steps:
        lake.write(lambda cursor, sql=step: cursor.execute(sql).fetchall())  # type: ignore[misc]
