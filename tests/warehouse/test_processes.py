"""Several processes on one lake: writers lose and double nothing, a reader is never refused, a plain DuckDB client sees it all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import pytest

from warehouse import Document, Lake
from warehouse.connections import how_to_attach
from warehouse.transactions import writers_lock

ROOT = Path(__file__).parents[2]
WRITERS, BATCHES, ROWS = 4, 4, 25


def _start(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *arguments], env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
@pytest.mark.slow
def test_four_writers_and_a_reader_share_a_new_lake(tmp_path: Path) -> None:
    writers = [
        _start(str(Path(__file__).with_name("writer_process.py")), str(tmp_path), f"w{number}", str(BATCHES), str(ROWS))
        for number in range(WRITERS)
    ]
    seen = _read_until_done(tmp_path, writers)
    for writer in writers:
        assert writer.wait() == 0, writer.stderr.read() if writer.stderr else ""
    assert seen == sorted(seen) and len(seen) > 3, "the reader saw rows vanish or hardly read at all"
    expected = (WRITERS + 1) * (BATCHES // 2) * ROWS
    with Lake(tmp_path, read_only=True) as lake:
        (counts,) = lake.query(
            "SELECT count(*) AS n, count(DISTINCT id) AS ids, (SELECT count(*) FROM turns) AS turns FROM trajectories"
        ).to_pylist()
    assert counts == {"n": expected, "ids": expected, "turns": expected}


def _read_until_done(home: Path, writers: list[subprocess.Popen[str]]) -> list[int]:
    """Counts that a reader saw, query by query; any error of a query fails the test."""
    with Lake(home):
        pass
    seen = []
    with Lake(home, read_only=True) as lake:
        while any(writer.poll() is None for writer in writers):
            seen += lake.query("SELECT count(*) AS n FROM trajectories t JOIN turns u ON u.trajectory_id = t.id").column("n").to_pylist()
            time.sleep(0.1)
    return seen


@pytest.mark.slow
def test_a_plain_client_reads_by_the_printed_lines_while_a_writer_is_open(lake: Lake) -> None:
    lake.add([Document(f"d{number}", "t", "x", "s") for number in range(40)])
    with duckdb.connect() as client:
        client.execute(how_to_attach(lake.place.home))
        assert client.execute("SELECT count(*) FROM documents").fetchall() == [(40,)]
        lake.add([Document("new", "t", "x", "s")])
        assert client.execute("SELECT count(*) FROM documents").fetchall() == [(41,)]
        assert client.execute("SELECT * FROM evaluations").fetchall() == []
        with pytest.raises(duckdb.InvalidInputException, match="read-only"):
            client.execute("DELETE FROM documents")


def test_a_writer_waits_for_another_only_so_long(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with writers_lock(lock), pytest.raises(TimeoutError, match="another writer"), writers_lock(lock, patience_s=0.05):
        pass
    with writers_lock(lock, patience_s=0.05):
        pass


def test_a_writer_that_wants_the_lock_again_lets_those_in_that_wait(tmp_path: Path) -> None:
    """It wants it again within microseconds, and the others look every few milliseconds."""
    lock, waiting, ended, taken = tmp_path / "writer.lock", threading.Event(), threading.Event(), 0

    def take_again() -> None:
        nonlocal taken
        while not ended.is_set():
            with writers_lock(lock):
                taken += waiting.is_set()
                time.sleep(0.02)

    greedy = threading.Thread(target=take_again)
    greedy.start()
    for _ in range(5):
        waiting.set()
        with writers_lock(lock):
            waiting.clear()
    ended.set()
    greedy.join()
    assert taken < 5 * 8
