"""`flywheel eval` over stored attempts: figures, comparison, no result where too little was judged, stated answers, the check."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.homes import overrides
from eval.suites.tasks import enter_suite
from flows.config import load_config
from flows.home import Home
from flows.suites.config import find_suite
from flows.suites.results import forget_invalid, states
from tests.flows.homes import NOW, ended, flywheel
from warehouse import Lake, Outcome, Policy, Run, Score, StopReason, Task, Trajectory, Turn

NAMES = ("Amber", "Blue", "Coral", "Dusk", "Ember", "Fern", "Gold", "Hazel", "Iris", "Jade")
TASKS = [Task(f"k{n}", "search", f"Which name has number {n}?", (f"{NAMES[n % 10]} {NAMES[n // 10]}",), hops=1 + n % 2) for n in range(100)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which three policies have tried a suite of a file: t1-rl well, t1-sft badly, t1-cpt with three faults."""
    root = tmp_path_factory.mktemp("suites")
    config = load_config("quickstart")
    Home(root / "home").claim(config)
    rows = [{"key": task.key, "question": task.question, "answers": task.answers, "hops": task.hops} for task in TASKS]
    (root / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite = find_suite("tasks", config.evaluation, settings_of(root))
    with Lake(root / "home") as lake:
        lake.add(enter_suite(task, "mine", verifier="qa_em") for task in TASKS)
        for policy, solved, broken in (("t1-rl", 80, 0), ("t1-sft", 40, 2), ("t1-cpt", 10, 3)):
            lake.add([Policy(policy, None, policy.split("-")[1], f"policies/{policy}", "w", None, promoted=policy == "t1-rl")])
            lake.add([Run(f"eval-{policy}-mine", "eval", 1, {"suite": suite.model_dump(mode="json")}, "d", 0, 1, "completed", NOW)])
            said = [f"The name is {task.answers[0]}." if policy == "t1-sft" else "a" for task in TASKS]
            lake.add(tried(policy, number, number < solved, number >= 100 - broken, said[number]) for number in range(100))
    return root


def settings_of(root: Path) -> list[str]:
    return ["name=mine", f"source.path={root / 'tasks.jsonl'}", "verifier=qa_em"]


def tried(policy: str, number: int, solved: bool, broken: bool, said: str = "a") -> Trajectory:
    turn = Turn(0, (1, 2), (-0.1, -0.1), "a", "answer", said, (), "", None, None, 0.1, 1)
    outcome = Outcome.INVALID if broken else Outcome.SUCCESS if solved else Outcome.FAILURE
    made = ended(f"{policy}-mine-k{number}-0", f"mine-k{number}", outcome, policy, suite="mine")
    return replace(made, turns=(turn,), stop_reason=StopReason.FAULT if broken else StopReason.ANSWERED)


def evaluate(root: Path, *arguments: str, status: int = 0) -> str:
    return flywheel("eval", "--home", root / "home", "--suite", "tasks", *overrides(settings_of(root)), *arguments, status=status)


def document(root: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(evaluate(root, "--json", *arguments, status=status))
    return found


@pytest.mark.slow
def test_the_champion_is_compared_with_another_policy(home: Path) -> None:
    found = document(home, "--against", "t1-sft")
    assert found["policy"] == "t1-rl" and found["objection"] is None
    assert found["headline"]["estimate"]["value"] == 0.8
    assert found["groups"]["hops"]["1"]["tasks"] == 50
    assert found["comparison"]["real"] is True and found["comparison"]["tasks"] == 98
    assert found["documents"] == "those of the home" and found["untaken_calls"] == 0
    told = evaluate(home, "--against", "t1-sft").replace("\n", " ")
    assert "those of the home" in told and "80.0 (71.1–86.7)" in told and "+40.8 points" in told


@pytest.mark.slow
def test_too_many_invalid_attempts_give_no_result_and_status_1(home: Path) -> None:
    assert document(home, "--policy", "t1-sft")["objection"] is None, "two of a hundred may be"
    found = document(home, "--policy", "t1-cpt", status=1)
    assert found["coverage"]["invalid"] == 3 and found["headline"] is None and found["ladder"] is None
    assert "success =" not in evaluate(home, "--policy", "t1-cpt", status=1)


@pytest.mark.slow
def test_the_check_tells_each_of_the_seven_traits(home: Path) -> None:
    found = document(home, "--check")
    states = {trait["name"]: trait["state"] for trait in found["traits"]}
    assert states == {
        "size": "not kept", "label quality": "kept", "one headline figure": "kept", "one command": "kept", "meaning": "kept",
        "grading checked": "kept", "not saturated": "kept",
    }  # fmt: skip
    assert found["contamination"]["looked_at"] == ["t1-rl"] and found["contamination"]["tasks_asked"] == 0
    assert "a difference of 19" in evaluate(home, "--check").replace("\n", " ")


@pytest.mark.slow
def test_invalid_attempts_are_removed_to_be_repeated(home: Path) -> None:
    with Lake(home / "home") as lake:
        lake.add([tried("t1-old", number, True, number < 4) for number in range(5)])
        lake.add([Score(f"t1-old-mine-k{number}-0", "qa_em", "1", None, Outcome.INVALID, "no answer") for number in range(4)])
        lake.add([Run("eval-t1-old-mine", "eval", 1, {}, "d", 0, 1, "completed", NOW)])
        assert forget_invalid(lake, "t1-old", "mine") == 4
        assert [one.id for one in lake.trajectories("policy = 't1-old'")] == ["t1-old-mine-k4-0"]
        assert lake.scores("starts_with(trajectory_id, 't1-old')") == []
        assert [run.state for run in lake.runs("id = 'eval-t1-old-mine'")] == ["failed"], "the suite is not done any more"
        assert [failure.kind for failure in lake.failures("eval")] == ["retried"] * 4
        assert forget_invalid(lake, "t1-old", "mine") == 0


BERLIN, RIVERS = Task("b", "search", "?", ("Berlin",)), Task("r", "search", "?", ("Rhine", "Elbe"), provenance={"set": True})
HALF, STREET, NONE = Task("h", "math", "?", ("42",)), Task("s", "search", "?", ("Straße",)), Task("n", "search", "?", ())
CASES = [
    (BERLIN, "The capital of Germany is Berlin.", True),
    (BERLIN, "Germany's capital: berlin!", True),
    (BERLIN, "A Berliner", False),
    (BERLIN, "<think>Berlin? No, Bonn.</think>Bonn", False),
    (BERLIN, "<think>Which?</think>It is Berlin.", True),
    (RIVERS, "They are the Elbe and the Rhine.", True),
    (HALF, "The result is 42 apples.", True),
]  # fmt: skip


@pytest.mark.parametrize(("task", "answer", "stated"), CASES)
def test_an_accepted_answer_among_other_words_is_recognised(task: Task, answer: str, stated: bool) -> None:
    assert states(task, answer) is stated


@pytest.mark.slow
def test_eval_counts_failures_that_state_an_accepted_answer(home: Path) -> None:
    stated = document(home, "--policy", "t1-sft")["stated_answers"]
    assert (stated["failures"], stated["stating"]) == (58, 58) and stated["advice"], "successes and faults are not failures"
    assert document(home, "--policy", "t1-rl")["stated_answers"] == {"failures": 20, "stating": 0, "advice": None}
