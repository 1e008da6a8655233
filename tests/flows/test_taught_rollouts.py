"""`flywheel rollout --policy teacher`: the home's teacher plays tasks of the lake, over a real HTTP server, and is never asked twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flows.config import load_config
from flows.context import RunContext, StageRun, open_context
from flows.home import Home
from flows.stages.rollouts import SamplingPlan, sample_teacher, wanted_of_teacher
from tests.flows.homes import SMALL
from tests.rl.conftest import DOCUMENTS
from tests.synth.scripted import calling
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Lake, Outcome, Run, Task

FLYWHEEL = str(Path(sys.executable).parent / "flywheel")
TASKS = tuple(Task(f"k{number}", "search", f"Where is Amber Stone employed, {number}?", ("Blue River",)) for number in range(3))


def looks_up(body: dict[str, Any]) -> str:
    """Searches, and answers right but for the question that ends in 0."""
    question, *since = (message["content"] for message in body["messages"][1:])
    if not since:
        return calling("search", "look it up\n", query="Amber Stone")
    return "Red Hill" if question.endswith("0?") else "Blue River"


@contextmanager
def taught(root: Path, script: list[str] | None = None) -> Iterator[tuple[MisbehavingServer, Path]]:
    """A home with tasks and documents of its own, and a teacher that is up."""
    with MisbehavingServer(script or [], answer=looks_up) as server:
        named = [f"synth.teacher.{key}" for key in ("kind=openai", "model=m", f"base_url={server.url}", "first_pause_seconds=0.01")]
        Home(root).claim(load_config(SMALL, named))
        with Lake(root) as lake:
            lake.add([*TASKS, *DOCUMENTS])
        yield server, root


def rollout(home: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The command, on all tasks."""
    command = [FLYWHEEL, "rollout", "--home", str(home), "--policy", "teacher", "--suite", "train", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=550)


def sampled(context: RunContext, samples: int, condition: str = "split = 'train'") -> dict[str, Any]:
    """The figures of a plan that is carried out."""
    run = StageRun(context.lake, Run("r", "rollout", 1, {}, "", 0, None, "running", datetime.now(UTC)))
    figures = sample_teacher(context, wanted_of_teacher(context, SamplingPlan(condition, samples, 0.5, 4)), run)
    run.flush()
    return figures


@pytest.mark.long
@pytest.mark.end_to_end
def test_the_command_stores_runs_and_scores_and_asks_nothing_the_second_time(tmp_path: Path) -> None:
    with taught(tmp_path / "home") as (server, home):
        first = rollout(home, "--samples", "2", "--json")
        assert first.returncode == 0, first.stderr[-2000:]
        asked = len(server.bodies)
        second = rollout(home, "--samples", "2", "--json")
        assert (second.returncode, len(server.bodies)) == (0, asked)
    figures = {row["figure"]: row["value"] for row in json.loads(first.stdout)}
    assert {name: figures[name] for name in ("trajectories", "success", "failure", "invalid", "turns")} == {
        "trajectories": 6, "success": 4, "failure": 2, "invalid": 0, "turns": 2.0,
    }  # fmt: skip
    assert asked == 12
    with Lake(home, read_only=True) as lake:
        runs = lake.trajectories()
        scores = {row["trajectory_id"]: row["verdict"] for row in lake.query("SELECT * FROM scores WHERE verifier = 'qa_em'").to_pylist()}
        assert {(run.stage, run.policy, run.prompt_ids) for run in runs} == {("demonstration", "openai:m", ())}
        assert scores == {run.id: run.outcome for run in runs}
        assert {run.task_key for run in runs if run.outcome is Outcome.FAILURE} == {"k0"}


@pytest.mark.slow
def test_more_samples_ask_for_what_is_missing_alone(tmp_path: Path) -> None:
    with taught(tmp_path / "home") as (server, home), open_context(home) as context:
        assert sampled(context, 1)["trajectories"] == 3
        asked = len(server.bodies)
        before = {run.id for run in context.lake.trajectories()}
        assert sampled(context, 3)["trajectories"] == 9
        assert (asked, len(server.bodies)) == (6, 18)
        assert sampled(context, 3)["trajectories"] == 9
        assert len(server.bodies) == 18
        assert before < {run.id for run in context.lake.trajectories()}


@pytest.mark.slow
def test_what_the_server_refuses_is_an_invalid_run_and_is_counted(tmp_path: Path) -> None:
    with taught(tmp_path / "home", ["400"]) as (_, home), open_context(home) as context:
        figures = sampled(context, 1, "key = 'k1'")
        (run,) = context.lake.trajectories()
    assert (figures["trajectories"], figures["success"], figures["invalid"]) == (1, 0, 1)
    assert run.outcome is Outcome.INVALID
    assert (run.error or "").startswith("refused: ")
