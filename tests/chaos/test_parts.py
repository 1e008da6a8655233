"""What a chaos test is made of, without a wheel: the choice of faults, whom they strike, what is compared, what is written down."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos.comparison import Check, Standard, as_rewarded, committed_at, compare, equal, faults_of, finished, nothing_left
from tests.chaos.faults import FaultKind, choose, order_faults, why_not_filled
from tests.chaos.journal import InjectedFault, Journal
from tests.chaos.processes import SHARED_MEMORY, Process, family, held_by, kill, read_process, targets
from warehouse import Lake, Outcome, Policy, Run, Score, Task, Trajectory, Turn
from warehouse.errors import RequestError
from warehouse.records import Example, Part, PartKind, StopReason

KINDS = tuple(FaultKind)
START = datetime(2030, 1, 1, tzinfo=UTC)


def test_the_order_of_faults_follows_from_the_seed_and_gives_every_kind_its_share() -> None:
    order = order_faults(100, KINDS, 20.0, seed=3)
    assert order == order_faults(100, KINDS, 20.0, seed=3)
    assert order.kinds != order_faults(100, KINDS, 20.0, seed=4).kinds
    assert sorted(Counter(order.kinds).values()) == [16, 16, 17, 17, 17, 17]
    assert min(order.pauses) >= 1.0
    assert 14.0 < sum(order.pauses) / 100 < 26.0


def test_what_was_made_out_of_its_order_is_not_made_again() -> None:
    order = order_faults(12, KINDS, 20.0, seed=0)
    made = Counter({FaultKind.DISK: 2, FaultKind.DRIVER: 1})
    left = order.remaining(made)
    assert Counter(left) + made == Counter(order.kinds)
    assert FaultKind.DISK not in left
    assert left == [kind for place, kind in enumerate(order.kinds) if kind in left and order.kinds[:place].count(kind) >= made[kind]]
    assert order.remaining(Counter(order.kinds)) == []


def test_the_first_fault_that_is_possible_is_chosen() -> None:
    wished = [FaultKind.ENGINE, FaultKind.DRIVER, FaultKind.SERVER]
    assert choose(wished, {FaultKind.SERVER, FaultKind.DRIVER}) is FaultKind.DRIVER
    assert choose(wished, {FaultKind.DISK}) is None


def processes() -> dict[int, Process]:
    """A driver with its server and Ray, beside somebody else's engine."""
    rows = [
        (10, 1, "python -m flows.cli run"),
        (11, 10, "python -m uvicorn --factory prefect.server.api.server:create_app"),
        (12, 10, "raylet"),
        (13, 12, "ray::VllmEngine.generate"),
        (14, 12, "ray::EnvironmentWorker"),
        (15, 12, "ray::EnvironmentWorker"),
        (16, 12, "ray::IDLE"),
        (20, 1, "raylet"),
        (21, 20, "ray::VllmEngine"),
    ]
    return {number: Process(number, parent, 7, title) for number, parent, title in rows}


def test_only_what_the_driver_started_belongs_to_its_run() -> None:
    assert {process.id for process in family(10, processes())} == {10, 11, 12, 13, 14, 15, 16}
    assert family(99, processes()) == []


@pytest.mark.parametrize(
    ("kind", "stage", "struck"),
    [
        (FaultKind.DRIVER, None, {10}),
        (FaultKind.SERVER, "synth", {11}),
        (FaultKind.SERVER, None, set()),
        (FaultKind.ENGINE, "eval", {13}),
        (FaultKind.WORKER, "eval", {14, 15}),
        (FaultKind.LEARNER, "eval", set()),
        (FaultKind.LEARNER, "cpt", {10}),
        (FaultKind.DISK, "cpt", set()),
    ],
)
def test_a_fault_strikes_its_own_kind_of_process(kind: FaultKind, stage: str | None, struck: set[int]) -> None:
    assert {process.id for process in targets(kind, 10, family(10, processes()), stage)} == struck


def test_a_learner_on_workers_is_one_of_them() -> None:
    everyone = processes() | {17: Process(17, 12, 7, "ray::_LearnerWorker.update")}
    assert [process.id for process in targets(FaultKind.LEARNER, 10, family(10, everyone), "rl")] == [17]


def test_a_process_that_has_the_id_of_another_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        found = read_process(child.pid)
        assert found is not None
        assert not kill(replace(found, began=found.began - 1))
        assert child.poll() is None
        assert kill(found)
        assert child.wait() == -9
        assert not kill(found)


HOLDS = "import sys, pathlib, time; held = pathlib.Path(sys.argv[1]).open('w'); print('open', flush=True); time.sleep(600)"


def test_what_a_process_holds_open_outside_the_home_is_seen(tmp_path: Path) -> None:
    shared = SHARED_MEMORY / f"chaos-test-{tmp_path.name}-{id(tmp_path)}"
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(shared)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = read_process(child.pid)
        assert found is not None
        assert shared in held_by([found], tmp_path)
        child.kill()
    assert nothing_left([], [shared]) == Check("left behind", False, f"1 files, the first {shared}")
    shared.unlink()


def test_a_disk_that_holds_more_than_the_chaos_test_is_not_filled(tmp_path: Path) -> None:
    assert "no filesystem of its own" in (why_not_filled(tmp_path) or "")


def test_a_folder_belongs_to_one_chaos_test_and_remembers_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "chaos")
    journal.claim({"seed": 1, "kinds": KINDS})
    journal.claim({"seed": 1, "kinds": KINDS})
    with pytest.raises(RequestError, match="seed differ"):
        journal.claim({"seed": 2, "kinds": KINDS})
    made = InjectedFault("disturbed-1", START.isoformat(), FaultKind.ENGINE, 7, "t1-rl", 40)
    journal.note(made)
    assert Journal(tmp_path / "chaos").faults() == [made]
    home = journal.disturbed(1)
    journal.note_committed(home, {"a": "1"})
    journal.note_committed(home, {"a": "2", "b": "3"})
    assert journal.committed(home) == {"a": "1", "b": "3"}
    with pytest.raises(RequestError, match="not empty"):
        Journal(tmp_path).claim({})


def trajectory(name: str, task: str, outcome: Outcome, stage: str = "eval") -> Trajectory:
    """A try at a task, of two turns; an invalid one has no reward."""
    invalid = outcome is Outcome.INVALID
    turns = tuple(Turn(place, (5, 6, 7 + place), (-0.1, -0.2, -0.3), "x", "search", "x", (8,), "y", None, "ok", 0.1, 1) for place in (0, 1))
    return Trajectory(
        id=name,
        task_key=task,
        policy="t1-rl",
        stage=stage,
        horizon=2,
        prompt_ids=(1, 2),
        turns=turns,
        stop_reason=StopReason.FAULT if invalid else StopReason.ANSWERED,
        outcome=outcome,
        reward=None if invalid else float(outcome is Outcome.SUCCESS),
        seed=1,
        started=START,
        seconds=0.1,
        suite="held_out" if stage == "eval" else None,
        error="the environment's worker died" if invalid else None,
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose wheel has made one turn: ten tasks, five of them solved, and ten attempts of RL, nine rewarded. It is left as it is."""
    home = tmp_path_factory.mktemp("chaos") / "undisturbed"
    tasks = [Task(f"k{place}", "search", f"Question {place}?", ("yes",), split="held_out") for place in range(10)]
    tries = [trajectory(f"e{place}", f"k{place}", Outcome.SUCCESS if place < 5 else Outcome.FAILURE) for place in range(10)]
    tries += [trajectory(f"r{place}", "k0", Outcome.SUCCESS if place < 9 else Outcome.FAILURE, "rl") for place in range(10)]
    with Lake(home) as lake:
        lake.add([*tasks, Example("x1", "fas_plan", (Part(PartKind.TEXT, "plan", True),), ("k1",))])
        made = lake.snapshot()
        lake.add([Policy("t1-rl", None, "rl", "policies/t1-rl", "d", None), *tries])
        lake.add([Score(one.id, "qa_em", "1", one.reward, one.outcome or Outcome.INVALID) for one in tries])
        lake.add([Run(f"t1-{stage}", stage, 1, {}, "c", 1, made, "completed", START, START) for stage in ("synth", "gate")])
    return home


@pytest.fixture
def home(undisturbed: Path, tmp_path: Path) -> Path:
    """That home once more, for a test to spoil."""
    return Path(shutil.copytree(undisturbed, tmp_path / "disturbed-1"))


def broken(checks: list[Check]) -> dict[str, str]:
    """What did not hold, and what was found."""
    return {check.name: check.found for check in checks if not check.held}


def test_a_home_that_is_as_the_undisturbed_one_holds_in_everything(undisturbed: Path, home: Path) -> None:
    assert finished(home, 1) and not finished(home, 2) and not finished(home / "none", 1)
    checks = compare(home, Standard.of(undisturbed), committed_at(undisturbed))
    assert broken(checks) == {}
    found = {check.name: check.found for check in checks}
    assert found["committed"] == "all 20 of 20"
    assert found["policy"] == "t1-rl 50.0 on held_out, undisturbed 50.0 (23.7–76.3)"
    assert found["reward"] == "9 of 10 attempts of RL succeed, undisturbed 9 (p = 1.000)"
    assert found["invalid"] == "0 of 10"


def test_what_is_lost_or_other_than_it_was_is_found(undisturbed: Path, home: Path) -> None:
    with Lake(home) as lake:
        lake.remove(Trajectory, ["e1"])
    found = broken(compare(home, Standard.of(undisturbed), committed_at(undisturbed) | {"e3": "other tokens"}))
    assert found == {
        "lake": "1 rows of scores are of no trajectory",
        "committed": "1 lost, the first e1; 1 other than they were, the first e3",
        "invalid": "t1-rl was tried on 9 of 10 tasks of held_out",
    }


def test_digests_that_are_missing_too_many_or_other_are_found() -> None:
    assert equal("tasks", {"a": "1"}, {"a": "1"}) == Check("tasks", True, "1 equal")
    found = equal("tasks", {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9", "d": "4", "e": "5"})
    assert found == Check("tasks", False, "2 missing, the first d; 1 too many, the first c; 1 other, the first b")
    assert not equal("tasks", {}, {}).held, "two empty lakes prove nothing"


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("INSERT INTO trajectories SELECT * FROM trajectories WHERE id = 'e1'", "1 rows of trajectories are double"),
        ("DELETE FROM turns WHERE trajectory_id = 'e1' AND \"index\" = 1", "1 trajectories lack turns or tokens, the first is e1"),
        ("UPDATE turns SET action_logprobs = [] WHERE trajectory_id = 'e2'", "1 trajectories lack turns or tokens, the first is e2"),
        ("DELETE FROM trajectories WHERE id = 'e3'", "1 trajectories lack turns or tokens, the first is e3"),
        ("UPDATE runs SET state = 'running' WHERE id = 't1-gate'", "t1-gate did not end"),
    ],
)
def test_a_lake_that_does_not_agree_with_itself_is_told(home: Path, statement: str, told: str) -> None:
    with Lake(home) as lake:
        lake.write(lambda cursor: cursor.execute(statement))
        assert told in faults_of(lake)


def test_a_policy_outside_the_interval_and_invalid_ones_with_a_reward_are_found(undisturbed: Path, home: Path) -> None:
    standard = Standard.of(undisturbed)
    with Lake(home) as lake:
        lake.write(lambda cursor: cursor.execute("UPDATE scores SET verdict = 'failure' WHERE verdict = 'success'"))
        lake.replace([replace(trajectory("e9", "k9", Outcome.INVALID), reward=0.0)])
    found = broken(compare(home, standard, {}))
    assert found["policy"] == "t1-rl 0.0 on held_out, undisturbed 50.0 (23.7–76.3)"
    assert found["reward"] == "0 of 10 attempts of RL succeed, undisturbed 9 (p = 0.004)"
    assert found["invalid"] == "1 invalid ones have a reward or no error"


def test_two_wheels_that_are_never_rewarded_are_no_proof() -> None:
    nothing = dict.fromkeys("abc", False)
    assert "choose a profile that learns" in as_rewarded(nothing, nothing).found and not as_rewarded(nothing, nothing).held
    assert not as_rewarded({}, {"a": True}).held, "nor is one that attempted nothing"
