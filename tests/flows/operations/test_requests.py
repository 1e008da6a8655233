"""Requests to a running process: heard, recorded and obeyed between steps; refused where no process answers."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from flows.config import load_config
from flows.context import StageRun, open_context
from flows.home import Home
from flows.operations.budgets import Meter, Spending, spending
from flows.operations.control import (
    MOST_BYTES,
    Control,
    ControlRequest,
    ControlState,
    Order,
    Progress,
    ProgressWriter,
    RequestListener,
    ask,
    read_progress,
)
from flows.operations_config import BudgetConfig
from flows.pipeline import run_attempt
from tests.flows.homes import NOW, ended, flywheel
from warehouse import Failure, Lake, Run, Task, Trajectory
from warehouse.errors import RequestError

if TYPE_CHECKING:
    from rl.rollouts.rollout import Rollouts

GONE = 2**22 + 1
"""The id of no process: Linux gives smaller ones."""
SOON = 60.0
TASK = Task("k", "search", "?", ())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.claim(load_config("quickstart"))
    return home


@contextmanager
def hearing(home: Home, control: Control) -> Iterator[list[Failure]]:
    """A home with a progress record and a listener; yields what is recorded."""
    recorded: list[Failure] = []
    writer = ProgressWriter(home.progress, lambda: Progress(os.getpid(), time.time()))
    until(home.progress.exists)
    listener = RequestListener(home.requests, control, lambda: None, recorded.append)
    try:
        yield recorded
    finally:
        listener.close()
        writer.close()


def until(true: Callable[[], bool]) -> None:
    """Wait until something is so, for a minute at most."""
    deadline = time.monotonic() + SOON
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert true()


def put(home: Home, name: str, content: str | bytes) -> Path:
    home.requests.mkdir(exist_ok=True)
    file = home.requests / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_a_request_returns_when_it_is_obeyed_and_recorded(home: Home) -> None:
    control = Control()
    with hearing(home, control) as recorded:
        ask(home, Order.limit, 3)
        assert control.state == ControlState(None, 3) and control.state.admitted == 3
        ask(home, Order.pause)
        assert control.state.paused_since is not None and control.state.admitted == 0
        ask(home, Order.resume)
        assert control.state == ControlState(None, 3), "the limit outlives a pause"
    assert [(row.stage, row.kind) for row in recorded] == [("requests", "limit"), ("requests", "pause"), ("requests", "resume")]
    assert recorded[0].item["limit"] == 3 and recorded[0].item["process"] == os.getpid()
    assert list(home.requests.iterdir()) == []


def test_a_request_to_a_home_where_nothing_runs_is_refused(home: Home, tmp_path: Path) -> None:
    for arguments in (["pause"], ["resume"], ["limit", "4"]):
        with pytest.raises(RequestError, match="nothing runs in"):
            flywheel(*arguments, "--home", home.root)
    assert not home.requests.exists()
    with pytest.raises(RequestError, match="none is not a home"):
        ask(Home(tmp_path / "none"), Order.pause)
    home.progress.write_text('{"process": 77, "written": 1000.0}')
    with pytest.raises(RequestError, match="nothing runs in"):
        ask(home, Order.pause)


def test_an_unanswered_request_is_withdrawn(home: Home) -> None:
    home.progress.write_text(f'{{"process": 77, "written": {time.time() + 3600}}}')
    with pytest.raises(RequestError, match="process 77"):
        ask(home, Order.pause, patience_seconds=0.3)
    assert list(home.requests.iterdir()) == []


WRONG: tuple[str | bytes, ...] = (
    "",
    "[]",
    '{"order": "stop", "process": 1, "asked": 1.0}',
    '{"order": "pause", "process": 1, "asked": 1.0, "limit": 3}',
    '{"order": "limit", "process": 1, "asked": 1.0}',
    '{"order": "limit", "process": 1, "asked": 1.0, "limit": "3"}',
    '{"order": "pause", "process": 1, "asked": 1.0, "command": "rm"}',
    '{"order": "pause", "process": 1, "asked": NaN}',
    '{"order": "limit", "process": 1, "asked": 1.0, "limit": 100000000000}',
    b"\xff\xfe\x00",
    " " * (MOST_BYTES + 1),
    "[" * MOST_BYTES,
)


def test_an_invalid_request_is_recorded_and_not_obeyed(home: Home) -> None:
    control, files = Control(), [put(home, f"1-{number}.json", content) for number, content in enumerate(WRONG)]
    with hearing(home, control) as recorded:
        until(lambda: not any(file.exists() for file in files))
    assert [row.kind for row in recorded] == ["invalid"] * len(WRONG) and all(len(row.reason) < 300 for row in recorded)
    assert control.state == ControlState()


def test_pipes_folders_and_requests_to_a_process_that_has_ended_block_nothing(home: Home) -> None:
    put(home, "0-1.json", ControlRequest(order=Order.limit, process=GONE, asked=1.0, limit=3).model_dump_json())
    os.mkfifo(home.requests / "1-1.json")
    (home.requests / "2-1.json").mkdir()
    (home.requests / "1-2.json").symlink_to(home.root / "config.json")
    control = Control()
    with hearing(home, control) as recorded:
        ask(home, Order.pause)
    assert [row.kind for row in recorded] == ["unheard", "invalid", "invalid", "pause"]
    assert home.config_file.is_file() and control.state.limit is None


@pytest.mark.slow
def test_a_stage_waits_between_two_steps_and_the_pause_is_not_counted(home: Home) -> None:
    steps, made, ended = threading.Semaphore(0), list[int](), threading.Event()

    def work(run: StageRun) -> dict[str, Any]:
        for step in range(1, 4):
            assert steps.acquire(timeout=SOON)
            made.append(step)
            run.metric(step, {"loss": 1.0 / step})
        return {}

    def stage() -> None:
        run_attempt(context.lake, "t1-cpt", "cpt", 1, {}, lambda run: work(context.watch(run)))
        ended.set()

    with open_context(home.root) as context:
        thread = threading.Thread(target=stage)
        thread.start()
        until(lambda: read_progress(home.progress) is not None)
        command("pause", home.root)
        steps.release(3)
        until(lambda: bool(made))
        time.sleep(0.5)
        assert made == [1] and not ended.is_set(), "it waits after its first step"
        command("resume", home.root)
        thread.join(SOON)
        assert made == [1, 2, 3] and ended.is_set()
        (run,) = context.lake.runs("id = 't1-cpt'")
        took = (run.finished - run.started).total_seconds() if run.finished else 0.0
        paused = run.figures["paused_seconds"]
        assert 0.5 <= paused <= took
        assert spending(context.lake, home.root, 1).seconds == pytest.approx(took - paused, abs=0.02)
        rows = context.lake.query("SELECT kind, item->>'run' AS run FROM failures WHERE stage = 'requests'").to_pylist()
    assert sorted((row["kind"], row["run"]) for row in rows) == [("pause", "t1-cpt"), ("resume", "t1-cpt")]


@pytest.mark.slow
def test_pause_limit_and_resume_reach_running_rollouts(home: Home) -> None:
    from rl.rollouts.agent_loop import RolloutRequest
    from tests.flows.reinforcement_process import ToyRollouts

    under_way: list[str] = []

    class Patient(ToyRollouts):
        async def one(self, request: RolloutRequest) -> Trajectory:
            under_way.append(request.trajectory_id)
            await asyncio.sleep(0.05)
            under_way.remove(request.trajectory_id)
            most.append(len(under_way))
            return ended(request.trajectory_id, "k", None, stage="rl")

    most: list[int] = []
    requests = [RolloutRequest(f"t{number}", TASK, "p", 1, seed=number) for number in range(8)]
    with open_context(home.root) as context:
        context._rollouts = rollouts = cast("Rollouts", Patient(kill=-1))
        until(home.progress.exists)
        command("pause", home.root)
        stream = rollouts.submit(requests)
        time.sleep(0.5)
        assert not stream.ready and under_way == []
        command("limit", home.root, "1")
        command("resume", home.root)
        assert [trajectory.id for trajectory in stream] == [request.trajectory_id for request in requests]
        assert set(most) == {0}, "one after the other"
        command("limit", home.root, "256")
        assert len(list(rollouts.submit(requests))) == 8
        assert max(most) == 7, "all at once"


@pytest.mark.slow
def test_a_budget_of_hours_excludes_pauses(tmp_path: Path) -> None:
    control = Control()
    control.obey(Order.pause)
    with Lake(tmp_path) as lake:
        threading.Timer(1.0, control.obey, [Order.resume]).start()
        meter = Meter(BudgetConfig(hours=0.8 / 3600), Spending, look_seconds=0.0)
        run = StageRun(lake, Run("t1-rl", "rl", 1, {}, "d", 0, None, "running", NOW), meter)
        run.heed(control)
        assert not run.metric(1, {"reward": 0.5}), "a second has gone by, in which it stood still"
        time.sleep(0.9)
        assert run.metric(2, {"reward": 0.5})


def command(name: str, home: Path, *arguments: str) -> None:
    assert f"process {os.getpid()}" in flywheel(name, *arguments, "--home", home)
