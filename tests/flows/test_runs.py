"""A stage's run: done once, resumed when it was interrupted, its figures in the lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.context import StageRun
from flows.pipeline import run_attempt
from warehouse import Lake, Metric, Task
from warehouse.errors import RequestError


def work(run: StageRun) -> dict[str, Any]:
    run.metric(1, {"loss": 2.0})
    run.metric(2, {"loss": 1.0})
    return {"policy": "t1-cpt"}


def test_a_stage_is_done_once_and_says_what_it_found(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        assert run_attempt(lake, "t1-cpt", "cpt", 1, {"a": 1}, work)[0] is True
        again, figures = run_attempt(lake, "t1-cpt", "cpt", 1, {"a": 1}, work)
        assert again is False
        assert figures["policy"] == "t1-cpt"
        curve = lake.query("SELECT step, value FROM learning_curve WHERE metric = 'loss' ORDER BY step").to_pylist()
        assert curve == [{"step": 1, "value": 2.0}, {"step": 2, "value": 1.0}]
        assert lake.runs()[0].snapshot_after is not None


def test_a_stage_that_failed_is_marked_and_done_again(tmp_path: Path) -> None:
    def fail(run: StageRun) -> dict[str, Any]:
        run.metric(1, {"loss": 3.0})
        raise OSError("the disk is full")

    with Lake(tmp_path) as lake:
        with pytest.raises(OSError, match="full"):
            run_attempt(lake, "t1-cpt", "cpt", 1, {}, fail)
        assert [run.state for run in lake.runs()] == ["failed"]
        assert [figure.value for figure in lake.metrics("t1-cpt")] == [3.0]
        assert run_attempt(lake, "t1-cpt", "cpt", 1, {}, work)[0] is True
        assert [run.state for run in lake.runs()] == ["completed"]


def test_a_stage_goes_on_from_its_snapshot_though_its_teacher_is_asked_otherwise(tmp_path: Path) -> None:
    def fail(run: StageRun) -> dict[str, Any]:
        raise OSError("the disk is full")

    def begun(concurrency: int, count: int) -> int | None:
        settings = {"synth": {"teacher": {"concurrency": concurrency}, "documents": count}}
        with pytest.raises(OSError, match="full"):
            run_attempt(lake, "t1-rl", "rl", 1, settings, fail)
        lake.add([Metric("another", "rl", 1, lake.snapshot(), "figure", 1.0)])
        return lake.runs()[0].snapshot_before

    with Lake(tmp_path) as lake:
        first = begun(16, 100)
        assert begun(4, 100) == first, "how a teacher is asked is no part of what the stage is"
        assert (begun(4, 200) or 0) > (first or 0)


def test_a_stage_that_was_refused_sees_next_time_what_was_asked_for(tmp_path: Path) -> None:
    """As RL does without a task that it may draw: it says to import some, and they come after the snapshot that it would have read."""

    def choose(run: StageRun) -> dict[str, Any]:
        if not lake.tasks(at=run.run.snapshot_before):
            raise RequestError("there is no task: import some")
        return {}

    with Lake(tmp_path) as lake:
        with pytest.raises(RequestError, match="import some"):
            run_attempt(lake, "t1-rl", "rl", 1, {}, choose)
        lake.add([Task("k1", "search", "?", ("a",))])
        assert run_attempt(lake, "t1-rl", "rl", 1, {}, choose)[0] is True
        assert [run.state for run in lake.runs()] == ["completed"]
