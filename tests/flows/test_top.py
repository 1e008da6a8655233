"""The live view on homes as they are found: at work, finished, left behind by a killed process. A wheel that turns: tests/end_to_end."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from flows.config import FlywheelConfig
from flows.context import StageRun
from flows.home import Home
from flows.operations.control import Progress, ProgressWriter, StageProgress, read_progress
from flows.status_line import StatusLine
from flows.top import Remaining, State, Watcher, frame, stage_left, stage_steps, wheel_left
from rl.engines.base import EngineFigures, EngineState, PoolFigures
from rl.env_pool.circuit_breaker import EnvironmentFigures, EnvironmentPoolFigures, FaultFigures
from tests.flows.wheel_records import START, write_wheel
from warehouse import Lake
from warehouse.records import Run

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


@pytest.mark.slow
def test_a_wheel_at_work_shows_stage_step_figures_engines_environments_tools_and_time_left(home: Home, watcher: Watcher) -> None:
    now = time.time()
    tell(home, replace(WORKING, written=now, stage=replace(RL, began=now - 40)))
    shown = text(watcher.look())
    assert "turn 2 of 2" in shown
    assert "▶ rl" in shown and "✓ cpt 2 min" in shown and "✓ t1-rl-fixed_last" in shown
    left = re.search(r"step 30 of 50 .* left: (\d+) s", shown)
    assert left is not None and 40 <= int(left[1]) < 80, "20 steps took as long as this process has been at it"
    (reward,) = (line.split() for line in shown.splitlines() if line.startswith("│ reward"))
    assert reward[1:3] == ["reward", "0.875"] and 0.8 < float(reward[3]) < 1, "now, and the mean of the lake's last ten steps"
    assert [line.split()[1:8] for line in shown.splitlines() if "engine-0" in line] == [
        ["engine-0", "serving", "29", "12", "40", "900", "12,345"],
    ]  # fmt: skip
    assert "1,234 tokens a second" in shown
    assert "1 of the last 64 trajectories" in shown and "3 of the last 64 calls" in shown
    assert "56 trajectories have not ended" in shown
    assert "zero_variance is 0.58 at step 56" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (StageProgress("t2-rl", "rl", 2, began=0.0, steps=50), "step 1 of 50 running"),
        (StageProgress("t2-cpt", "cpt", 2, began=0.0), "step 1 running"),
        (StageProgress("t2-rl", "rl", 2, began=0.0, steps=50, resumed=True), "resumed"),
        (StageProgress("t2-synth", "synth", 2, began=0.0), "running"),
    ],
)
def test_a_stage_has_a_bar_before_its_first_step_has_ended(home: Home, watcher: Watcher, stage: StageProgress, told: str) -> None:
    tell(home, replace(WORKING, written=time.time(), stage=stage))
    (row,) = (shown for shown in text(watcher.look()).splitlines() if shown.startswith(f"│ {stage.run} "))
    assert re.search(rf"{stage.run} +{told} +[█░]{{30}} ", row)


def test_the_last_line_of_a_terminal_says_how_far_a_stage_is_below_the_log() -> None:
    written = io.StringIO()
    log, kept = logging.Logger("tried"), StatusLine(written)
    log.addHandler(kept)
    kept.show(StageProgress("t1-rl", "rl", 1, began=0.0, steps=40))
    assert written.getvalue().endswith(f"{'░' * 30}  t1-rl: step 1 of 40 running")
    log.warning("an engine starts")
    assert written.getvalue().endswith(f"\r\x1b[2Kan engine starts\n{'░' * 30}  t1-rl: step 1 of 40 running")
    kept.show(StageProgress("t1-rl", "rl", 1, began=0.0, step=20, steps=40))
    assert written.getvalue().endswith(f"\r\x1b[2K{'█' * 15}{'░' * 15}  t1-rl: step 20 of 40")
    kept.show(None)
    log.warning("done")
    assert written.getvalue().endswith("\r\x1b[2Kdone\n")


@pytest.mark.slow
def test_a_home_in_which_nothing_is_at_work_says_so(watcher: Watcher) -> None:
    shown = text(watcher.look())
    assert "finished: nothing is running" in shown, "both gates have spoken: what never ran was left out"
    assert "▶" not in shown and "– synth" in shown
    assert "invalid" in shown


@pytest.mark.slow
def test_a_process_that_was_killed_is_told_from_one_that_works(home: Home, watcher: Watcher) -> None:
    tell(home, replace(WORKING, written=time.time() - 100))
    shown = text(watcher.look())
    assert "no word from process 77 for 2 min" in shown
    assert "▶" not in shown


def changes(folder: Path) -> dict[Path, int]:
    """When each file was changed last, but the memory that SQLite's readers and writers share: a reader notes itself there."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.suffix != ".sqlite-shm"}


@pytest.mark.slow
def test_looking_changes_nothing_in_the_home(home: Home, watcher: Watcher) -> None:
    before = changes(home.root)
    watcher.look()
    assert changes(home.root) == before


@pytest.mark.slow
def test_one_frame_is_printed_for_scripts_and_a_folder_without_a_lake_is_refused(home: Home, tmp_path: Path) -> None:
    flywheel = str(Path(sys.executable).parent / "flywheel")
    once = subprocess.run([flywheel, "top", "--once", "--home", str(home.root)], capture_output=True, text=True, timeout=550)
    assert once.returncode == 0 and "nothing is running" in once.stdout
    wrong = subprocess.run([flywheel, "top", "--once", "--home", str(tmp_path)], capture_output=True, text=True, timeout=550)
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)


@pytest.mark.slow
def test_a_record_is_written_anew_each_second_and_taken_away_at_the_end(tmp_path: Path) -> None:
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


INTERRUPTED = """
import random, signal
from flows.top import Interrupts

interrupts, draw = Interrupts(signal.SIGALRM), random.Random(0)
for _ in range(20_000):
    signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 1e-4))
    while not interrupts.wait(0):
        pass
"""


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupt_may_come_at_any_moment_of_the_wait() -> None:
    subprocess.run([sys.executable, "-c", INTERRUPTED], check=True, timeout=550)


@pytest.mark.long
@pytest.mark.slow
def test_the_view_is_drawn_again_until_it_is_interrupted(home: Home) -> None:
    terminal, inner = pty.openpty()
    command = [str(Path(sys.executable).parent / "flywheel"), "top", "--home", str(home.root), "--every", "0.5"]
    view = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"})
    os.close(inner)
    drawn, until = b"", time.monotonic() + 240
    while drawn.count(b"nothing is running") < 3 and time.monotonic() < until:
        drawn += os.read(terminal, 65_536)
    view.send_signal(signal.SIGINT)
    with suppress(OSError):  # the terminal is gone with its last user
        while select.select([terminal], [], [], 20)[0]:
            os.read(terminal, 65_536)
    assert view.wait(240) == 0
    os.close(terminal)
    assert drawn.count(b"nothing is running") >= 3


def test_a_record_of_another_version_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text('{"process": "seven"}')
    assert read_progress(tmp_path / "progress.json") is None


def test_what_is_left_of_a_stage_follows_from_the_steps_of_this_process() -> None:
    assert stage_left(RL, CONFIG, now=1040.0) == Remaining(40.0), "20 steps in 40 s, 20 more to go"
    assert stage_left(replace(RL, step=10), CONFIG, now=1040.0) == Remaining(None, ("t2-rl",)), "one step is no rate"
    assert stage_left(None, CONFIG, now=1040.0) == Remaining(0.0)


def test_the_steps_of_supervised_stages_follow_from_the_epoch_and_from_the_limit_of_tokens() -> None:
    cpt = StageProgress("t1-cpt", "cpt", 1, began=0.0, step=100, figures={"epoch": 0.25})
    assert stage_steps(cpt, CONFIG) == 400
    of_seven_passes = replace(cpt, step=3, figures={"epoch": 6 / 7})
    thrice = CONFIG.model_copy(update={"cpt": CONFIG.cpt.model_copy(update={"epochs": 3})})
    assert stage_steps(of_seven_passes, thrice) == 12, "an epoch of seven passes has four steps of two"
    tokens = 200 * CONFIG.cpt.rows_per_step * CONFIG.cpt.row_tokens
    limited = CONFIG.model_copy(update={"cpt": CONFIG.cpt.model_copy(update={"max_tokens": tokens})})
    assert stage_steps(cpt, limited) == 200
    assert stage_steps(replace(cpt, figures={}), CONFIG) is None


def test_what_is_left_of_the_wheel_is_what_its_stages_took_before_and_names_what_never_ran() -> None:
    stages = [("cpt", "done", 100.0), ("rl", "running", None), ("gate", "to do", None), ("cpt", "to do", None), ("rl", "to do", None)]
    assert wheel_left(stages, Remaining(40.0)) == Remaining(140.0, ("gate", "rl"))


@pytest.mark.slow
def test_a_stage_tells_how_far_it_is_and_from_where_this_process_went_on(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        run = StageRun(lake, Run("t1-rl", "rl", 1, {}, "d", 0, None, "running", START), total_steps=9)
        assert run.progress().step is None
        run.metric(4, {"reward": 0.5})
        run.metric(5, {"reward": 0.75})
    told = run.progress()
    assert (told.first_step, told.step, told.steps, told.figures) == (4, 5, 9, {"reward": 0.75})
