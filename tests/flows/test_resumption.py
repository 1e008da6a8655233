"""An RL run that is killed in the middle of a step ends with the weights of one that was not, bit by bit, in every mode."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.toy_home import home_of
from warehouse import Lake, Policy, Run

pytestmark = pytest.mark.engine

PER_STEP, NEVER = 12, 10**6


class Stage:
    """The process that forks one that does the stage."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.orders, self.answers = process.stdin, process.stdout

    def run(self, home: Path, kill: int = NEVER) -> int:
        """Its exit status; it kills itself at request number `kill`."""
        print(home, kill, file=self.orders, flush=True)
        return int(self.answers.readline())


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-m", "tests.flows.reinforcement_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Stage(process)
        process.stdin.close()


def weights_of(home: Path) -> str:
    with Lake(home, read_only=True) as lake:
        (policy,) = lake.policies("id = 't1-rl'")
    return policy.weights_digest


def rows(home: Path, sql: str) -> list[dict[str, Any]]:
    with Lake(home, read_only=True) as lake:
        return lake.query(sql).to_pylist()


MODES = {
    "synchronous": (),
    "reuse": ("rl.replay.reuse=0.4", 'rl.correction.weights="truncated"'),
    "one_step_off": ('rl.mode="one_step_off"',),
}


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_a_run_killed_in_a_step_ends_with_the_weights_of_an_undisturbed_one(stage: Stage, tmp_path: Path, mode: str) -> None:
    whole, killed = (home_of(tmp_path / name, *MODES[mode]) for name in ("whole", "killed"))
    assert stage.run(whole) == 0
    assert stage.run(killed, kill=round(4.5 * (8 if mode == "reuse" else PER_STEP))) == -signal.SIGKILL
    steps = {int(path.name.split("-")[1]) for path in (killed / "policies" / "t1-rl" / "checkpoints").glob("checkpoint-*")}
    assert steps == {3}, "a step after the last checkpoint is to be made again from the lake, and one to be sampled"
    assert rows(killed, "SELECT max(step) AS last FROM trajectories")[0]["last"] in (4, 5)
    assert stage.run(killed) == 0
    assert weights_of(killed) == weights_of(whole) != weights_of_start(whole)
    sampled = "SELECT id, reward FROM trajectories ORDER BY id"
    assert rows(killed, sampled) == rows(whole, sampled)


def weights_of_start(home: Path) -> str:
    with Lake(home, read_only=True) as lake:
        return lake.policies("id = 't1-sft'")[0].weights_digest


@pytest.mark.long
@pytest.mark.parametrize(("stale", "workers"), [("drop", 1), ("wait", 1), ("drop", 2)])
def test_a_killed_asynchronous_run_ends_with_the_weights_of_one_that_learns_from_the_same_batches(
    stage: Stage, tmp_path: Path, stale: str, workers: int
) -> None:
    asynchronous = ('rl.mode="asynchronous"', f'rl.replay.stale="{stale}"', "rl.replay.max_staleness=1")
    home = home_of(tmp_path / "killed", *asynchronous, f"rl.learner.workers={workers}", "rollout.ray.object_store_gib=0.1")
    assert stage.run(home, kill=round(6.5 * PER_STEP)) == -signal.SIGKILL
    assert (home / "policies" / "t1-rl" / "checkpoints").is_dir()
    recorded = rows(home, "SELECT step, trajectories FROM batches ORDER BY step")
    assert len(recorded) >= 4
    assert stage.run(home) == 0
    batches = rows(home, "SELECT step, trajectories FROM batches ORDER BY step")
    assert batches[: len(recorded)] == recorded and [row["step"] for row in batches] == list(range(1, 9))
    learnt = [each for row in batches for each in row["trajectories"]]
    assert len(learnt) == len(set(learnt)) == 8 * PER_STEP
    weights = weights_of(home)

    replayed = tmp_path / "replayed"
    shutil.copytree(home, replayed)
    shutil.rmtree(replayed / "policies" / "t1-rl")
    with Lake(replayed) as lake:
        lake.remove(Run, ["t1-rl"])
        lake.remove(Policy, ["t1-rl"])
    assert stage.run(replayed, kill=0 if stale == "wait" else NEVER) == 0, "where nothing was dropped, nothing is left to be sampled"
    assert weights_of(replayed) == weights


@pytest.mark.long
def test_staleness_is_bounded_and_every_drop_is_a_row(stage: Stage, tmp_path: Path) -> None:
    home = home_of(tmp_path / "home", 'rl.mode="asynchronous"', "rl.replay.max_staleness=1", "rl.replay.capacity=9")
    assert stage.run(home) == 0
    figures = rows(home, "SELECT step, name, value FROM metrics WHERE run_id = 't1-rl'")
    oldest = [row["value"] for row in figures if row["name"] == "staleness_max"]
    assert len(oldest) == 8 and 0 < max(oldest) <= 1
    assert {"staleness", "effective_samples", "importance_ratio", "replay/waiting", "replay/under_way"} <= {row["name"] for row in figures}
    dropped = sum(row["value"] for row in figures if row["name"] == "replay/dropped")
    failures = rows(home, "SELECT item ->> 'trajectory' AS trajectory FROM failures WHERE kind = 'filter_stale'")
    assert dropped > 0 and len(failures) == 4 * dropped
    learnt = {each for row in rows(home, "SELECT trajectories FROM batches") for each in row["trajectories"]}
    assert not learnt & {row["trajectory"] for row in failures}
