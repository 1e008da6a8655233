"""The live view of a home: at work, finished, or left by a killed process."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from flows.config import FlywheelConfig
from flows.home import Home
from flows.operations.control import Progress, ProgressWriter, StageProgress, read_progress
from flows.top import State, Watcher, frame
from rl.engines.base import EngineFigures, EngineState, PoolFigures
from rl.env_pool.circuit_breaker import EnvironmentFigures, EnvironmentPoolFigures, FaultFigures
from tests.flows.wheel_records import write_wheel
from warehouse import Lake

pytestmark = pytest.mark.slow

CONFIG = FlywheelConfig()
RL = StageProgress("t2-rl", "rl", 2, began=1000.0, first_step=10, step=30, steps=50, figures={"reward": 0.875, "horizon": 6.0})
ENGINE = EngineFigures("engine-0", EngineState.SERVING, 29, in_flight=12, trajectories=40, requests=900, tokens=12_345)
HOSTING = EnvironmentPoolFigures(
    waiting=56,
    environments=(EnvironmentFigures("search", workers=2, trajectories=40, replaced=1),),
    faults=(FaultFigures("environment", "search", "trajectories", 64, 1), FaultFigures("tool", "search", "calls", 64, 3)),
)
WORKING = Progress(77, 0.0, 2, RL, PoolFigures(10.0, (ENGINE,), 900, 12_345, 0, 0, 29, 0), 1_234.5, HOSTING)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("wheel") / "home")
    home.claim(CONFIG)
    write_wheel(home.root, tasks_per_hop=2)
    return home


@pytest.fixture
def watcher(home: Home) -> Iterator[Watcher]:
    with Lake(home.root, read_only=True) as lake:
        yield Watcher(home, lake)
    home.progress.unlink(missing_ok=True)


def tell(home: Home, progress: Progress) -> None:
    """Have the record written as a process at work does."""
    writer = ProgressWriter(home.progress, lambda: progress)
    until = time.monotonic() + 120
    while not home.progress.exists() and time.monotonic() < until:
        time.sleep(0.02)
    kept = home.progress.read_bytes()
    writer.close()
    home.progress.write_bytes(kept)


def text(state: State) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(frame(state))
    return captured.get()


def test_a_wheel_at_work_shows_stage_step_figures_engines_environments_tools_and_time_left(home: Home, watcher: Watcher) -> None:
    now = time.time()
    tell(home, replace(WORKING, written=now, stage=replace(RL, began=now - 40)))
    shown = text(watcher.look())
    assert "iteration 2 of 2" in shown
    assert "▶ rl" in shown and "✓ cpt 2 min" in shown and "✓ t1-rl-fixed_last" in shown
    left = re.search(r"step 30 of 50 .* left: (\d+) s", shown)
    assert left is not None and 40 <= int(left[1]) < 80, "20 steps took 40 s"
    (reward,) = (line.split() for line in shown.splitlines() if line.startswith("│ reward"))
    assert reward[1:3] == ["reward", "0.875"] and 0.8 < float(reward[3]) < 1, "now, and the mean of the lake's last ten steps"
    (engine,) = (line.split()[1:8] for line in shown.splitlines() if "engine-0" in line)
    assert engine == ["engine-0", "serving", "29", "12", "40", "900", "12,345"]
    for figure in ("1,234 tokens", "1 of the last 64 trajectories", "3 of the last 64 calls", "56 trajectories", "zero_variance is 0.58"):
        assert figure in shown


def test_an_idle_home_is_shown_as_finished(watcher: Watcher) -> None:
    shown = text(watcher.look())
    assert "finished" in shown, "both gates have spoken: what never ran was left out"
    assert "▶" not in shown and "– synth" in shown and "invalid" in shown


def test_a_home_that_stopped_says_why(home: Home) -> None:
    with Lake(home.root) as lake:
        (run,) = lake.runs("id = 't2-rl'")
        lake.replace([replace(run, state="failed", figures={"error": "stopped by SIGTERM"})])
        assert "t2-rl failed: stopped by SIGTERM" in text(Watcher(home, lake).look())
        lake.replace([run])


def test_a_killed_process_is_not_shown_as_working(home: Home, watcher: Watcher) -> None:
    tell(home, replace(WORKING, written=time.time() - 100))
    shown = text(watcher.look())
    assert "process 77 for 2 min" in shown and "▶" not in shown


def changes(folder: Path) -> dict[Path, int]:
    """When each file was changed last, but the memory that SQLite's readers and writers share: a reader notes itself there."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.suffix != ".sqlite-shm"}


def test_looking_changes_nothing_in_the_home(home: Home, watcher: Watcher) -> None:
    before = changes(home.root)
    watcher.look()
    assert changes(home.root) == before


def test_the_progress_record_is_rewritten_each_second_and_removed_at_the_end(tmp_path: Path) -> None:
    file, looks = tmp_path / "progress.json", iter(range(1, 100))
    writer = ProgressWriter(file, lambda: replace(WORKING, process=next(looks)))
    seen: set[int] = set()
    until = time.monotonic() + 120
    while len(seen) < 2 and time.monotonic() < until:
        record = read_progress(file)
        if record is not None:
            seen.add(record.process)
            assert record == replace(WORKING, process=record.process)
        time.sleep(0.02)
    writer.close()
    assert len(seen) == 2
    assert list(tmp_path.iterdir()) == []
