"""Batches: what is committed is not made again, and a batch is there whole or not at all."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows.context import StageRun
from flows.stages.synthesis.batches import Batch, Made, dropped_by, work_off
from warehouse import Failure, Lake, Run, Task
from warehouse.errors import RequestError, WorkFailed


class Cut(BaseException):
    """What ends a process."""


@pytest.mark.slow
def test_what_is_committed_is_not_made_again(tmp_path: Path) -> None:
    made: list[str] = []

    def batch(number: int, cut: bool = False) -> Batch:
        def make() -> Made:
            made.append(f"{number}")
            if cut:
                raise Cut
            return [Task(f"t{number}", "search", "?", ("a",))], [Failure("synth", "shortfall", f"{number}")]

        return Batch("questions", number, make)

    with Lake(tmp_path) as lake:
        run = StageRun(lake, Run("t1-synth", "synth", 1, {}, "", 0, None, "running", datetime.now(UTC)))
        with pytest.raises(Cut):
            work_off(run, [batch(0), batch(1), batch(2, cut=True), batch(3)])
        assert [task.key for task in lake.tasks()] == ["t0", "t1"]
        work_off(run, [batch(0), batch(1), batch(2), batch(3)])
        assert [task.key for task in lake.tasks()] == ["t0", "t1", "t2", "t3"]
        assert made == ["0", "1", "2", "2", "3"]
        assert dropped_by(run) == 4


@pytest.mark.parametrize(("fault", "error", "remedy"), [("budget", RequestError, "max_tokens"), ("connection", WorkFailed, "its server")])
def test_a_batch_that_the_teacher_left_without_replies_is_made_again_by_the_same_command(
    tmp_path: Path, fault: str, error: type[Exception], remedy: str
) -> None:
    def batches(answered: bool) -> list[Batch]:
        tasks = [Task(f"t{number}", "search", "?", ("a",)) for number in range(2 if answered else 1)]
        return [Batch("seeds", 0, lambda: (tasks, [])), Batch("seeds", 1, lambda: ([Task("later", "search", "?", ("a",))], []))]

    with Lake(tmp_path) as lake:
        run = StageRun(lake, Run("t1-synth", "synth", 1, {}, "", 0, None, "running", datetime.now(UTC)))
        with pytest.raises(error, match=rf"t1-synth stops at seeds 0, .*\({fault} 3\): .*{remedy}.*; the same command goes on"):
            work_off(run, batches(answered=False), counted=lambda: {"asked": 5, fault: 3})
        assert not lake.tasks() and [row.kind for row in lake.failures("teacher")] == ["unanswered"]
        work_off(run, batches(answered=True), counted=lambda: {"asked": 5, "cut": 1, "refused": 1, "timeout": 2})
        assert [task.key for task in lake.tasks()] == ["later", "t0", "t1"]
