"""A stage of the wheel: what must run before it, done once, resumed after an interruption, its batches stored whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flows import pipeline
from flows.config import load_config
from flows.context import StageRun
from flows.inputs import check_before
from flows.pipeline import CODE, run_attempt
from flows.stages.reinforcement import evidence_of, reward_context
from flows.stages.synthesis.batches import Batch, Made, dropped_by, work_off
from rl.rewards.config import RewardConfig
from tests.flows.homes import NOW
from warehouse import Document, Example, Fact, Failure, Lake, Metric, Policy, Run, Task
from warehouse.digests import code_digest
from warehouse.errors import RequestError, WorkFailed
from warehouse.records import Part, PartKind


def work(run: StageRun) -> dict[str, Any]:
    run.metric(1, {"loss": 2.0})
    run.metric(2, {"loss": 1.0})
    return {"policy": "t1-cpt"}


def test_a_stage_is_done_once_and_says_what_it_found(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        assert run_attempt(lake, "t1-cpt", "cpt", 1, {"a": 1}, work)[0] is True
        again, figures = run_attempt(lake, "t1-cpt", "cpt", 1, {"a": 1}, work)
        assert again is False and figures["policy"] == "t1-cpt"
        curve = lake.query("SELECT step, value FROM learning_curve WHERE metric = 'loss' ORDER BY step").to_pylist()
        assert curve == [{"step": 1, "value": 2.0}, {"step": 2, "value": 1.0}]
        assert lake.runs()[0].snapshot_after is not None


def test_a_run_says_which_code_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All attempts count, and what a stage reports are numbers of one kind, so the code is in the lake alone."""

    def fail(run: StageRun) -> dict[str, Any]:
        raise OSError("the disk is full")

    with Lake(tmp_path) as lake:
        with pytest.raises(OSError, match="full"):
            run_attempt(lake, "t1-cpt", "cpt", 1, {}, fail)
        assert lake.runs()[0].figures[CODE] == code_digest()
        monkeypatch.setattr(pipeline, "code_digest", lambda: "other")
        for _ in range(2):
            assert CODE not in run_attempt(lake, "t1-cpt", "cpt", 1, {}, work)[1]
        assert lake.runs()[0].figures[CODE] == f"{code_digest()} other"


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


def at_work(lake: Lake) -> StageRun:
    return StageRun(lake, Run("t1-synth", "synth", 1, {}, "", 0, None, "running", NOW))


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
        run = at_work(lake)
        with pytest.raises(Cut):
            work_off(run, [batch(0), batch(1), batch(2, cut=True), batch(3)])
        assert [task.key for task in lake.tasks()] == ["t0", "t1"]
        work_off(run, [batch(0), batch(1), batch(2), batch(3)])
        assert [task.key for task in lake.tasks()] == ["t0", "t1", "t2", "t3"]
        assert made == ["0", "1", "2", "2", "3"]
        assert dropped_by(run) == 4


@pytest.mark.parametrize(("fault", "error", "remedy"), [("budget", RequestError, "max_tokens"), ("connection", WorkFailed, "its server")])
def test_a_batch_without_replies_of_the_teacher_is_made_by_the_next_run(
    tmp_path: Path, fault: str, error: type[Exception], remedy: str
) -> None:
    def batches(answered: bool) -> list[Batch]:
        tasks = [Task(f"t{number}", "search", "?", ("a",)) for number in range(2 if answered else 1)]
        return [Batch("seeds", 0, lambda: (tasks, [])), Batch("seeds", 1, lambda: ([Task("later", "search", "?", ("a",))], []))]

    with Lake(tmp_path) as lake:
        run = at_work(lake)
        with pytest.raises(error, match=rf"t1-synth .*seeds 0, .*\({fault} 3\): .*{remedy}"):
            work_off(run, batches(answered=False), counted=lambda: {"asked": 5, fault: 3})
        assert not lake.tasks() and [row.kind for row in lake.failures("teacher")] == ["unanswered"]
        work_off(run, batches(answered=True), counted=lambda: {"asked": 5, "cut": 1, "refused": 1, "timeout": 2})
        assert [task.key for task in lake.tasks()] == ["later", "t0", "t1"]


def policy(name: str) -> Policy:
    return Policy(name, None, name.split("-")[1], f"policies/{name}", "d", None, wheel_turn=int(name[1]))


def commands(lake: Lake, stage: str, *settings: str) -> list[str]:
    """The commands that a stage asks for, less the home."""
    try:
        check_before(lake, load_config("quickstart", settings), stage, 1, "")
    except RequestError as error:
        return [command.replace(f" --home {lake.place.home}", "") for command in re.findall("`flywheel (.*?)`", str(error))]
    return []


@pytest.mark.slow
def test_all_that_is_missing_is_named_once_and_in_order(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        every = ["init", "synth --turn 1", "train cpt --turn 1", "train sft --turn 1"]
        assert [commands(lake, stage) for stage in ("cpt", "sft", "rl")] == [every[:2], every[:3], every]
        lake.add([policy("t0-init"), Run("t1-synth", "synth", 1, {}, "d", 0, 1, "completed", NOW)])
        assert [commands(lake, stage) for stage in ("cpt", "sft", "rl")] == [[], every[2:3], every[2:]]
        lake.add([policy("t1-cpt"), policy("t1-sft")])
        assert commands(lake, "rl") == []


@pytest.mark.slow
def test_what_was_imported_or_made_alone_needs_no_whole_synthesis(tmp_path: Path) -> None:
    alone = 'wheel.stages=["rl"]'
    with Lake(tmp_path) as lake:
        lake.add([policy("t0-init")])
        assert commands(lake, "rl", alone) == ["synth --turn 1"]
        assert commands(lake, "rl", alone, "synth.webshaper.counts={}") == [], "synthesis makes no task: RL itself says what to import"
        lake.add([Task("k", "search", "Who?", ("Ann",))])
        assert commands(lake, "rl", alone) == []
        assert commands(lake, "rl", alone, "rl.tasks=split = 'mine'") == ["synth --turn 1"]
        lake.add([Example("e", "fas_plan", (Part(PartKind.QUESTION, "Who?"),), ())])
        assert commands(lake, "cpt") == []


FACTS = [Fact("Amber", "works at", "Blue", ("d1",)), Fact("Blue", "sits in", "Green", ("d2", "gone")), Fact("Green", "is", "Red", ("d3",))]
DOCUMENTS = [Document(f"d{n}", title, "", "test") for n, title in ((1, "Amber"), (2, "Blue River"), (3, "Green"))]
TASK = Task("t", "search", "Where?", ("Green",), provenance={"path": ["Amber", "Blue", "Green"]})
BARE = Task("bare", "search", "Where?", ("Green",))


def test_the_evidence_of_a_task_are_the_documents_that_state_the_facts_along_its_path(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.add([*FACTS, *DOCUMENTS])
        assert evidence_of(lake, [TASK]) == {"t": {"Amber", "Blue River"}}


@pytest.mark.slow
def test_a_reward_by_evidence_is_refused_at_once_where_a_task_names_none(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.add([*FACTS, *DOCUMENTS])
        assert reward_context(lake, RewardConfig(), [BARE]).evidence == {}
        with pytest.raises(RequestError, match="task bare"):
            reward_context(lake, RewardConfig(parts={"evidence": 0.1}), [TASK, BARE])
        with pytest.raises(RequestError, match="'nothing'"):
            reward_context(lake, RewardConfig(parts={"nothing": 0.1}), [TASK])
