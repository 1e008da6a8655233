"""Two turns of the real wheel at a small size: watched while it turns, looked through afterwards, and killed in each of its stages.

What one turn shows is asked of the newcomer's wheel (test_newcomer.py), which is no longer than that and runs more often.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from flows.config import load_config
from flows.home import Home
from flows.lakes import open_lake
from flows.suites.config import own_suite
from flows.suites.contamination import contamination
from flows.suites.tasks import draw_tasks
from flows.top import State, Watcher
from rl.policies.policy import load_policy
from tests.killing import kill_at
from warehouse import Lake
from warehouse.digests import digest

pytestmark = [pytest.mark.end_to_end, pytest.mark.long, pytest.mark.timeout(2400)]

PROFILE = Path(__file__).parent / "small.toml"
FLYWHEEL = Path(sys.executable).parent / "flywheel"
KILL_AT = ("t1-synth begins", "t1-cpt  step", "t1-sft begins", "eval-t1-sft-held_out begins", "t1-rl  step 1")
"""What the killed run has just said when SIGKILL comes: once in each kind of stage."""


def flywheel(*arguments: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(FLYWHEEL), *arguments], capture_output=True, text=True, timeout=1200)
    assert done.returncode == check, done.stderr[-3000:]
    return done


def run_arguments(home: Path) -> list[str]:
    return ["run", "--profile", str(PROFILE), "--home", str(home), "--turns", "1"]


def left_behind(home: Path) -> list[str]:
    """Command lines of processes that know of `home`: none may outlive its run for long."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"PREFECT_HOME={home}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def rows(home: Path, query: str) -> list[dict[str, Any]]:
    with Lake(home, read_only=True) as lake:
        return lake.query(query).to_pylist()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[State]]:
    """A home in which two turns were made, and what `flywheel top` saw of it meanwhile, each second."""
    home = tmp_path_factory.mktemp("undisturbed") / "home"
    arguments = ["run", "--profile", str(PROFILE), "--home", str(home), "--turns", "2"]
    said = home.with_name("said.txt")
    with said.open("w") as words, subprocess.Popen([str(FLYWHEEL), *arguments], stderr=words, stdout=subprocess.DEVNULL) as run:
        while run.poll() is None and not Home(home).progress.exists():
            time.sleep(0.2)
        seen = []
        with open_lake(home) as lake:
            watcher = Watcher(Home(home), lake)
            while run.poll() is None:
                seen.append(watcher.look())
                time.sleep(1.0)
    assert run.returncode == 0, said.read_text()[-3000:]
    return home, seen


@pytest.fixture(scope="module")
def undisturbed(watched: tuple[Path, list[State]]) -> Path:
    return watched[0]


def test_a_wheel_that_turns_can_be_watched(watched: tuple[Path, list[State]]) -> None:
    home, seen = watched
    working = [state for state in seen if state.at_work is not None]
    assert {state.at_work.stage for state in working if state.at_work} >= {"cpt", "rl", "eval"}
    assert {state.at_work.wheel_turn for state in working if state.at_work} >= {1, 2}
    learning = [state for state in working if state.at_work and state.at_work.stage == "rl" and state.at_work.step]
    assert learning, "RL was seen at a step"
    assert {metric.name for metric in learning[-1].metrics} >= {"reward", "horizon", "turns", "valid"}
    assert {state.at_work.steps for state in learning if state.at_work} == {4}
    told = [state.progress for state in learning if state.progress]
    assert {engine.state for record in told if record.engines for engine in record.engines.engines} == {"serving"}
    assert {
        environment.name for record in told if record.environment_figures for environment in record.environment_figures.environments
    } == {"search"}
    assert max(state.trajectories for state in learning) >= 16
    assert seen[-1].turns == 2
    once = flywheel("top", "--once", "--home", str(home)).stdout
    assert "finished: nothing is running" in once
    assert not Home(home).progress.exists()


def test_every_stage_of_both_turns_is_in_the_lake(undisturbed: Path) -> None:
    done = {row["id"] for row in rows(undisturbed, "SELECT id FROM runs WHERE state = 'completed'")}
    assert {f"t{turn}-{stage}" for turn in (1, 2) for stage in ("synth", "cpt", "sft", "rl", "gate")} <= done
    evaluated = rows(
        undisturbed,
        "SELECT turn, stage, sum(tasks) AS tasks FROM evaluations WHERE hops IS NULL AND suite = 'held_out' GROUP BY ALL ORDER BY ALL",
    )
    assert [(row["turn"], row["stage"]) for row in evaluated] == [(t, s) for t in (1, 2) for s in ("cpt", "rl", "sft")]
    assert {row["tasks"] for row in evaluated} == {40}


def test_the_gate_decides_on_tasks_that_are_not_reported(undisturbed: Path) -> None:
    tried = rows(undisturbed, "SELECT DISTINCT policy FROM trajectories WHERE suite = 'validation' ORDER BY ALL")
    assert [row["policy"] for row in tried] == ["t1-rl", "t2-rl"]
    asked = rows(
        undisturbed, "SELECT split, list(formula::VARCHAR) AS formulas FROM tasks WHERE split IN ('held_out', 'validation') GROUP BY ALL"
    )
    formulas = {row["split"]: set(row["formulas"]) for row in asked}
    assert len(formulas["validation"]) == 20 and not formulas["validation"] & formulas["held_out"]
    with Lake(undisturbed, read_only=True) as lake:
        (decision,) = (run.figures for run in lake.runs("id = 't2-gate'"))
    assert decision["validation"]["tasks"] == 20 and "held_out" not in decision


def test_the_second_turn_learns_from_the_first_ones_trajectories(undisturbed: Path) -> None:
    sources = rows(
        undisturbed,
        """
        WITH used AS (SELECT unnest(sources) AS source FROM examples WHERE kind = 'has' AND wheel_turn = 2)
        SELECT count(*) AS n, count(t.id) AS found FROM used
        LEFT JOIN trajectories t ON t.id = used.source AND t.wheel_turn = 1 AND t.stage = 'rl'
        """,
    )[0]
    assert sources["n"] > 0
    assert sources["found"] == sources["n"]


def test_every_reward_is_the_sum_of_its_parts_and_filtered_trajectories_are_counted(undisturbed: Path) -> None:
    composed = rows(
        undisturbed,
        """
        SELECT count(*) AS n, max(abs(t.reward - p.points)) AS off, list_sort(any_value(p.names)) AS names
        FROM trajectories t JOIN (
            SELECT trajectory_id, sum(weight * value) AS points, list(name) AS names FROM reward_parts GROUP BY trajectory_id
        ) p ON p.trajectory_id = t.id WHERE t.stage = 'rl' AND t.outcome <> 'invalid'
        """,
    )[0]
    assert composed["n"] > 0 and composed["off"] < 1e-9
    assert composed["names"] == ["evidence", "outcome", "tool_success"]
    told = rows(
        undisturbed,
        """
        WITH left_out AS (SELECT item ->> 'run' AS run, (item ->> 'step')::INT AS step, count(*) AS n FROM failures
            WHERE kind = 'filter_no_variance' GROUP BY ALL),
        counted AS (SELECT run_id AS run, step, name, value FROM metrics WHERE stage = 'rl')
        SELECT s.value AS share, coalesce(l.n, 0) / t.value AS told FROM counted s JOIN counted t ON (s.run, s.step) = (t.run, t.step)
        LEFT JOIN left_out l ON (s.run, s.step) = (l.run, l.step) WHERE s.name = 'filtered/no_variance' AND t.name = 'trajectories'
        """,
    )
    assert len(told) == 8
    assert all(row["share"] == pytest.approx(row["told"]) for row in told)


def test_the_contamination_report_finds_nothing_held_out_in_what_training_asked_or_was_shown(undisturbed: Path) -> None:
    config = load_config(str(PROFILE))
    suite = own_suite("held_out", config.evaluation)
    with Lake(undisturbed, read_only=True) as lake:
        report = contamination(lake, "t2-rl", "held_out", draw_tasks(suite, config, lake))
    assert len(report.looked_at) > 2 and report.unknown == {}
    assert report.tasks_asked == 0 and report.counts["shown_document"] == report.counts["same_document"] == 0


def test_a_run_killed_in_every_stage_ends_as_the_undisturbed_one(undisturbed: Path, tmp_path: Path) -> None:
    home = tmp_path / "killed"
    for line in KILL_AT:
        kill_at(line, [str(FLYWHEEL), *run_arguments(home)])
        deadline = time.monotonic() + 240
        while left_behind(home) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert left_behind(home) == []
    flywheel(*run_arguments(home))
    tasks = "SELECT key, digest FROM tasks"
    made, expected = ({row["key"]: row["digest"] for row in rows(root, tasks)} for root in (home, undisturbed))
    assert len(made) == 100
    assert made.items() <= expected.items()
    assert examples_of(home) == examples_of(undisturbed)
    digests = "SELECT id, weights_digest FROM policies WHERE id IN ('t0-init', 't1-cpt', 't1-sft') ORDER BY id"
    assert len(rows(home, digests)) == 3 and rows(home, digests) == rows(undisturbed, digests)
    assert tokens_of(home) == tokens_of(undisturbed)
    ours, theirs = (load_policy(root / "policies" / "t1-rl")[0].state_dict() for root in (home, undisturbed))
    start = load_policy(home / "policies" / "t1-sft")[0].state_dict()
    assert furthest(ours, theirs) < 0.01 * furthest(start, theirs), "engines give a log-probability to the last bits but one"
    assert rows(home, "SELECT count(*) - count(DISTINCT id) AS double FROM trajectories") == [{"double": 0}]


def examples_of(home: Path) -> dict[str, str]:
    """A digest of what each example of the first turn says, by its id."""
    with Lake(home, read_only=True) as lake:
        return {example.id: digest(asdict(example)) for example in lake.examples() if example.wheel_turn == 1}


def tokens_of(home: Path) -> dict[str, list[tuple[int, ...]]]:
    """What was sampled and shown in each trajectory of the weights that no engine had a part in, in tokens, by its id."""
    with Lake(home, read_only=True) as lake:
        found = lake.trajectories("policy IN ('t1-cpt', 't1-sft') OR (stage = 'rl' AND wheel_turn = 1 AND step = 1)")
    assert len(found) == 2 * 40 + 2 * 16, "what has no variance is drawn once more"
    return {each.id: [each.prompt_ids, *(ids for turn in each.turns for ids in (turn.action_ids, turn.observation_ids))] for each in found}


def furthest(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """The largest difference between two weights."""
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
