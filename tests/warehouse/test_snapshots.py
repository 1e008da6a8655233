"""Snapshots with names outlive the others, and a dataset's digest tells whether its rows are the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from warehouse import Lake, Policy, RequestError, Run, Task
from warehouse.upkeep import check_pins, compact, expire_snapshots, measure, pin, snapshot_of, unpin

pytestmark = pytest.mark.slow

START = datetime(2026, 1, 1, tzinfo=UTC)
QUERY = "SELECT key, answers FROM tasks WHERE split = 'train' -- the training tasks"


def task(key: str, answer: str = "a") -> Task:
    return Task(key, "search", "?", (answer,))


def test_pinned_snapshots_and_those_of_policies_and_of_unfinished_runs_survive(lake: Lake) -> None:
    kept = {}
    for number in range(6):
        lake.add([task(f"t{number}")])
        kept[number] = lake.snapshot()
    pin(lake, "paper", kept[1])
    lake.add([Policy("p", None, "sft", "/p", "d", kept[3])])
    runs = [Run(f"r{at}", "rl", 1, {}, "d", kept[at], None, state, START) for at, state in ((0, "completed"), (4, "failed"))]
    lake.add(runs)
    assert expire_snapshots(lake, timedelta(days=1)) == 0
    forgotten = expire_snapshots(lake, timedelta(0))
    compact(lake)
    assert forgotten > 0
    assert [len(lake.tasks(at=at)) for at in (kept[1], kept[3], kept[4])] == [2, 4, 5] and len(lake.tasks()) == 6
    assert lake.query("SELECT count(*) AS n FROM tasks", at=snapshot_of(lake, "paper")).to_pylist() == [{"n": 2}]
    for at in (kept[0], kept[2]):
        with pytest.raises(RequestError, match="no snapshot"):
            lake.query("SELECT 1", at=at)


def test_a_dataset_is_a_query_at_a_snapshot(lake: Lake) -> None:
    lake.add([task("t1"), task("t2")])
    made = pin(lake, "train", query=QUERY)
    lake.add([task("t3")])
    assert made.n_rows == 2 and pin(lake, "train", made.snapshot, QUERY) == made
    assert [(one.pin.name, one.same) for one in check_pins(lake)] == [("train", True)]
    with pytest.raises(RequestError, match="pinned to snapshot"):
        pin(lake, "train", query=QUERY)


def test_the_digest_follows_the_rows_and_not_their_order(lake: Lake) -> None:
    lake.add([task("t1"), task("t2"), task("t3", "it's \x00 “b”")])
    at = lake.snapshot()

    def digest(sql: str) -> tuple[int, str]:
        return measure(lake, sql, at)

    whole = digest("SELECT key, answers FROM tasks")
    assert whole == digest("SELECT key, answers FROM tasks ORDER BY key DESC;")
    others = [
        "SELECT key, answers FROM tasks WHERE key <> 't2'",
        "SELECT key AS name, answers FROM tasks",
        "SELECT key, answers FROM tasks UNION ALL SELECT key, answers FROM tasks WHERE key = 't1'",
        "SELECT key, answers::JSON AS answers FROM tasks",
        "SELECT answers, key FROM tasks",
        "SELECT key, answers FROM tasks WHERE false",
    ]
    assert len({whole, *map(digest, others)}) == len(others) + 1


def test_names_that_could_be_mistaken_and_requests_that_cannot_be_met_are_refused(lake: Lake) -> None:
    for name in ("", " ", "12", "two words", "a\nb", "a\x1b[2J", "-a", "a/b", "x" * 101):
        with pytest.raises(RequestError, match="not a valid pin name"):
            pin(lake, name)
    pin(lake, "here")
    for asked in (unpin, snapshot_of):
        with pytest.raises(RequestError, match=r"'there'.*here"):
            asked(lake, "there")
    with pytest.raises(RequestError, match="no snapshot 999"):
        pin(lake, "future", 999)
    for query in ("DELETE FROM tasks", "SELECT 1) t; DROP TABLE tasks; --", "SELECT 1) t CROSS JOIN (SELECT 2", "SELECT * FROM nothing"):
        with pytest.raises(RequestError, match=r"(Parser|Catalog) Error"):
            pin(lake, "broken", query=query)
    for query in ("", " ;", "-- nothing"):
        with pytest.raises(RequestError, match="single SELECT"):
            pin(lake, "empty", query=query)
    assert snapshot_of(lake, "12") == 12
