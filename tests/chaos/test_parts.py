"""What a chaos test is made of, without a wheel: the choice of faults, the processes they kill, what is compared and written down."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos.comparison import Check, Standard, as_rewarded, committed_at, compare, equal, faults_of, finished, nothing_left
from tests.chaos.faults import FaultKind, choose, order_faults
from tests.chaos.journal import Journal
from tests.chaos.processes import SHARED_MEMORY, Process, family, held_by, kill, read_process, targets
from warehouse import Lake, Outcome, Policy, Run, Score, Task, Trajectory, Turn
from warehouse.records import Example, Part, PartKind, StopReason

KINDS = tuple(FaultKind)
START = datetime(2030, 1, 1, tzinfo=UTC)


def test_the_order_of_faults_follows_from_the_seed_and_what_was_made_is_not_made_again() -> None:
    order = order_faults(12, KINDS, 20.0, seed=3)
    assert order == order_faults(12, KINDS, 20.0, seed=3) and order.kinds != order_faults(12, KINDS, 20.0, seed=4).kinds
    assert set(Counter(order.kinds).values()) == {2} and min(order.pauses) >= 1.0
    made = Counter({FaultKind.DISK: 2, FaultKind.DRIVER: 1})
    assert Counter(order.remaining(made)) + made == Counter(order.kinds)
    assert choose([FaultKind.ENGINE, FaultKind.DRIVER], {FaultKind.SERVER, FaultKind.DRIVER}) is FaultKind.DRIVER


def processes() -> dict[int, Process]:
    """A driver with its server and Ray, and the engine of another."""
    rows = [
        (10, 1, "python -m flows.cli run"), (11, 10, "python -m uvicorn --factory prefect.server.api.server:create_app"),
        (12, 10, "raylet"), (13, 12, "ray::VllmEngine.generate"), (14, 12, "ray::EnvironmentWorker"), (15, 12, "ray::EnvironmentWorker"),
        (20, 1, "raylet"), (21, 20, "ray::VllmEngine"),
    ]  # fmt: skip
    return {number: Process(number, parent, 7, title) for number, parent, title in rows}


@pytest.mark.parametrize(
    ("kind", "stage", "struck"),
    [
        (FaultKind.DRIVER, None, {10}),
        (FaultKind.SERVER, "synth", {11}),
        (FaultKind.ENGINE, "eval", {13}),
        (FaultKind.WORKER, "eval", {14, 15}),
        (FaultKind.LEARNER, "eval", set()),
        (FaultKind.LEARNER, "cpt", {10}),
    ],
)
def test_a_fault_strikes_its_own_kind_of_process_of_its_own_run(kind: FaultKind, stage: str | None, struck: set[int]) -> None:
    assert {process.id for process in targets(kind, 10, family(10, processes()), stage)} == struck


HOLDS = "import sys, pathlib, time; held = pathlib.Path(sys.argv[1]).open('w'); print('open', flush=True); time.sleep(600)"


def test_what_a_process_holds_open_is_seen_and_a_process_that_has_the_id_of_another_is_left_alone(tmp_path: Path) -> None:
    shared = SHARED_MEMORY / f"chaos-test-{tmp_path.name}-{id(tmp_path)}"
    with subprocess.Popen([sys.executable, "-S", "-c", HOLDS, str(shared)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = read_process(child.pid)
        assert found is not None and shared in held_by([found], tmp_path)
        assert not kill(replace(found, began=found.began - 1)) and child.poll() is None
        assert kill(found) and child.wait() == -9 and not kill(found)
    assert nothing_left([], [shared]) == Check("left behind", False, f"1 files, the first {shared}")
    shared.unlink()


def test_what_was_committed_first_stays_in_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "chaos")
    journal.claim({})
    for noted in ({"a": "1"}, {"a": "2", "b": "3"}):
        journal.note_committed(journal.disturbed(1), noted)
    assert journal.committed(journal.disturbed(1)) == {"a": "1", "b": "3"}


def trajectory(name: str, task: str, outcome: Outcome, stage: str = "eval") -> Trajectory:
    invalid = outcome is Outcome.INVALID
    turns = tuple(Turn(place, (5, 6, 7 + place), (-0.1, -0.2, -0.3), "x", "search", "x", (8,), "y", None, "ok", 0.1, 1) for place in (0, 1))
    made = Trajectory(name, task, "t1-rl", stage, 2, (1, 2), turns, StopReason.ANSWERED, outcome, None, 1, START, 0.1)
    told = {"stop_reason": StopReason.FAULT, "error": "the worker died"} if invalid else {"reward": float(outcome is Outcome.SUCCESS)}
    return replace(made, suite="held_out" if stage == "eval" else None, **told)  # type: ignore[arg-type]


def home_of(root: Path) -> Path:
    """A home whose wheel has made one turn: ten tasks, five of them solved, and ten attempts of RL, nine rewarded."""
    tasks = [Task(f"k{place}", "search", f"Question {place}?", ("yes",), split="held_out") for place in range(10)]
    tries = [trajectory(f"e{place}", f"k{place}", Outcome.SUCCESS if place < 5 else Outcome.FAILURE) for place in range(10)]
    tries += [trajectory(f"r{place}", "k0", Outcome.SUCCESS if place < 9 else Outcome.FAILURE, "rl") for place in range(10)]
    with Lake(root) as lake:
        lake.add([*tasks, Example("x1", "fas_plan", (Part(PartKind.TEXT, "plan", True),), ("k1",))])
        made = lake.snapshot()
        lake.add([Policy("t1-rl", None, "rl", "policies/t1-rl", "d", None), *tries])
        lake.add([Score(one.id, "qa_em", "1", one.reward, one.outcome or Outcome.INVALID) for one in tries])
        lake.add([Run(f"t1-{stage}", stage, 1, {}, "c", 1, made, "completed", START, START) for stage in ("synth", "gate")])
    return root


def broken(checks: list[Check]) -> dict[str, str]:
    """What did not hold, and what was found."""
    return {check.name: check.found for check in checks if not check.held}


DISAGREEMENTS = (
    "INSERT INTO trajectories SELECT * FROM trajectories WHERE id = 'e5'",
    "DELETE FROM turns WHERE trajectory_id = 'e4' AND \"index\" = 1",
    "UPDATE turns SET action_logprobs = [] WHERE trajectory_id = 'e2'",
    "UPDATE runs SET state = 'running' WHERE id = 't1-gate'",
)


@pytest.mark.slow
def test_a_home_that_is_as_the_undisturbed_one_holds_and_what_is_lost_or_other_is_found(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    assert finished(home, 1) and not finished(home, 2) and not finished(home / "none", 1)
    standard, noted = Standard.of(home), committed_at(home)
    assert broken(compare(home, standard, noted)) == {} and len(noted) == 20
    with Lake(home) as lake:
        lake.remove(Trajectory, ["e1"])
        lake.write(lambda cursor: cursor.execute("UPDATE scores SET verdict = 'failure' WHERE verdict = 'success'"))
        lake.replace([replace(trajectory("e9", "k9", Outcome.INVALID), reward=0.0)])
    found = broken(compare(home, standard, noted | {"e3": "other tokens"}))
    assert found["lake"] == "1 rows of scores are of no trajectory"
    assert found["committed"] == "1 lost, the first e1; 1 other than they were, the first e3"
    assert "0.0 on held_out, undisturbed 50.0" in found["policy"] and "0 of 10 attempts" in found["reward"]
    assert "9 of 10 tasks" in found["invalid"] and "1 invalid ones have a reward or no error" in found["invalid"]
    with Lake(home) as lake:
        for statement in DISAGREEMENTS:
            lake.write(lambda cursor, statement=statement: cursor.execute(statement))
        double, lacking, orphans, open_ = faults_of(lake)
    assert double == "1 rows of trajectories are double" and orphans == "1 rows of scores are of no trajectory"
    assert lacking.startswith("2 trajectories lack turns or tokens") and open_ == "t1-gate did not end"


def test_two_empty_lakes_and_wheels_that_are_never_rewarded_prove_nothing() -> None:
    assert equal("tasks", {"a": "1"}, {"a": "1"}).held and not equal("tasks", {}, {}).held
    found = equal("tasks", {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9", "d": "4", "e": "5"})
    assert found == Check("tasks", False, "2 missing, the first d; 1 too many, the first c; 1 other, the first b")
    nothing = dict.fromkeys("abc", False)
    assert not as_rewarded(nothing, nothing).held and not as_rewarded({}, {"a": True}).held
