"""A synthesis that is killed at random moments, fifty times in the long form, makes what an undisturbed one makes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pytest

from flows.config import load_config
from flows.home import Home
from warehouse import Lake, Metric

pytestmark = pytest.mark.end_to_end

SMALL = Path(__file__).parent / "small.toml"
SETTINGS = (
    "corpus.train.entities=200",
    "corpus.held_out.entities=150",
    "synth.batch=10",
    "synth.documents=20",
    "synth.fas.plan_slices=10",
    'synth.fas.reasoning={"1":30,"2":20}',
    'synth.webshaper.counts={"1":20,"2":20}',
    'synth.demonstration_questions.counts={"1":10,"2":10}',
    'evaluation.suites.held_out.counts={"1":10,"2":10}',
)


@dataclass(slots=True)
class Worker:
    """The process that forks one that works, and what it is told and tells."""

    orders: IO[str]
    answers: IO[str]

    def run(self, home: Path, kill_after: float | None = None) -> int:
        """The exit status of a synthesis in `home`; -9 where it was killed."""
        print(home, file=self.orders, flush=True)
        child = os.pidfd_open(int(self.answers.readline()))
        try:
            if kill_after is not None:
                time.sleep(kill_after)
                with suppress(ProcessLookupError):  # it has ended by itself
                    signal.pidfd_send_signal(child, signal.SIGKILL)
            return int(self.answers.readline())
        finally:
            os.close(child)


@contextmanager
def worker() -> Iterator[Worker]:
    script = Path(__file__).parent / "synthesis_process.py"
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=script.parent.parent.parent
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield Worker(process.stdin, process.stdout)
    finally:
        process.stdin.close()
        process.wait(30)


def claim(root: Path) -> Path:
    Home(root).claim(load_config(str(SMALL), SETTINGS))
    return root


def content(root: Path) -> dict[str, Any]:
    """Everything that synthesis has stored, and that no row is there twice."""
    with Lake(root, read_only=True) as lake:
        for table, key in (("tasks", "key"), ("examples", "id"), ("failures", "id"), ("documents", "id"), ("metrics", "(name, step)")):
            (row,) = lake.query(f"SELECT count(*) AS n, count(DISTINCT {key}) AS different FROM {table}").to_pylist()
            assert row["n"] == row["different"], table
        (run,) = lake.runs()
        return {
            "tasks": lake.tasks(),
            "examples": lake.examples(),
            "failures": sorted(map(repr, lake.failures())),
            "facts": lake.facts(),
            "documents": lake.documents(),
            "marks": [replace(metric) for metric in lake.read(Metric)],
            "figures": {name: value for name, value in run.figures.items() if name != "seconds"},
            "state": run.state,
        }


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.timeout(1200)
def test_kills_change_nothing(tmp_path: Path, kills: int) -> None:
    chance = random.Random(7)
    with worker() as at_work:
        assert at_work.run(claim(tmp_path / "undisturbed")) == 0
        started = time.monotonic()
        assert at_work.run(claim(tmp_path / "timed")) == 0  # the first one also warmed files and libraries up
        whole = time.monotonic() - started
        expected = content(tmp_path / "undisturbed")
        assert expected["state"] == "completed" and len(expected["marks"]) > 20
        killed, homes, batches = 0, 0, set()
        while killed < kills:
            home, status = claim(tmp_path / f"killed-{homes}"), -signal.SIGKILL
            homes += 1
            while killed < kills and status == -signal.SIGKILL:
                status = at_work.run(home, kill_after=chance.uniform(0.0, whole))
                killed += status == -signal.SIGKILL
                batches.add(_batches_done(home))
            assert status in (0, -signal.SIGKILL)
            assert at_work.run(home) == 0
            assert content(home) == expected
    assert len(batches) > kills / 5, "the kills must hit many different moments"


def _batches_done(home: Path) -> int:
    if not (home / "lake" / "catalog.sqlite").exists():
        return 0
    with Lake(home) as lake:
        return len(lake.metrics())
