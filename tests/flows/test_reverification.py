"""Stored trajectories are judged again without sampling, and task sets are proven."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from eval.graders.choice import verifiers_of
from eval.graders.verifiers import GRADERS, VERIFIERS, AnswerVerifier
from flows.verification import reverify, validate_home, validate_rows
from tests.flows.homes import ended, flywheel
from warehouse import Lake, Outcome, Score, StopReason, Task, Trajectory, Turn
from warehouse.errors import RequestError

TASKS = [
    Task("lake", "search", "Which lake?", ("Green Lake",)),
    Task("colours", "search", "Which colours?", ("red", "blue"), provenance={"set": True}),
    Task("sum", "code", "How much?", ("#### 18",), provenance={"verifier": "gsm8k"}),
]


def attempt(name: str, task: str, answer: str | None) -> Trajectory:
    turn = Turn(0, (1,), (-0.1,), f"{answer}", "answer" if answer is not None else "search", answer or "q", (), "", None, "ok", 0.1, 1)
    return replace(ended(name, task, None), turns=(turn,))


ATTEMPTS = [
    attempt("a", "lake", "the green lake"),
    attempt("b", "lake", "Green Lake or Blue Lake"),
    attempt("c", "colours", "blue; red"),
    attempt("d", "colours", "red"),
    attempt("e", "sum", "It is $18."),
    replace(attempt("f", "lake", "Green Lake"), stop_reason=StopReason.FAULT),
]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake(tmp_path) as lake:
        lake.add([*TASKS, *ATTEMPTS])
        yield lake


def outcomes(lake: Lake) -> dict[str, str]:
    return {row["trajectory_id"]: row["outcome"] for row in lake.query("SELECT trajectory_id, outcome FROM outcomes").to_pylist()}


@pytest.mark.slow
def test_each_task_is_judged_by_its_own_verifier(lake: Lake) -> None:
    found = reverify(lake, verifiers_of("qa_em"))
    assert (found.chosen, found.judged, found.success, found.failure, found.invalid, found.changed) == (6, 6, 3, 2, 1, 6)
    assert outcomes(lake) == {"a": "success", "b": "failure", "c": "success", "d": "failure", "e": "success", "f": "invalid"}
    assert {s.trajectory_id: s.verifier for s in lake.scores()}["e"] == "gsm8k"
    assert reverify(lake, verifiers_of("qa_em")).judged == 0


@pytest.mark.slow
def test_a_new_version_of_a_verifier_adds_a_score_that_decides(lake: Lake) -> None:
    reverify(lake, VERIFIERS["qa_em"])
    older, newer = GRADERS["qa_em"].version, "next"

    def severe(answer: object, golds: object, options: object) -> tuple[float, bool]:
        return 0.0, False

    found = reverify(lake, AnswerVerifier(replace(GRADERS["qa_em"], version=newer, rule=severe)), where="task_key = 'lake'")
    assert (found.chosen, found.judged, found.changed) == (3, 3, 1)
    versions = sorted((s.version, s.verdict) for s in lake.scores("trajectory_id = 'a'"))
    assert versions == [(older, Outcome.SUCCESS), (newer, Outcome.FAILURE)]
    assert outcomes(lake)["a"] == "failure"


@dataclass(slots=True)
class Recovering:
    """Cannot judge what `broken` says, and counts what it is asked."""

    broken: Callable[[str], bool]
    asked: int = 0
    name: str = "recovering"
    version: str = "1"

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        self.asked += 1
        if self.broken(trajectory.id):
            return Score(trajectory.id, self.name, self.version, None, Outcome.INVALID, "the judge was away")
        return Score(trajectory.id, self.name, self.version, 1.0, Outcome.SUCCESS)


@pytest.mark.slow
def test_the_verdict_of_another_verifier_can_be_reverted(lake: Lake) -> None:
    reverify(lake, verifiers_of("qa_em"))
    own = outcomes(lake)
    looked = reverify(lake, VERIFIERS["qa_em"], "task_key = 'sum'")
    assert (looked.judged, looked.taken_up, looked.changed) == (1, 0, 1) and outcomes(lake) != own
    back = reverify(lake, verifiers_of("qa_em"))
    assert (back.judged, back.taken_up, back.changed) == (0, 1, 1) and outcomes(lake) == own
    assert (again := reverify(lake, verifiers_of("qa_em"))).taken_up == 0 == again.changed
    assert lake.query("SELECT count(*) AS n FROM scores").to_pylist() == [{"n": 7}], "both verdicts are kept"


@pytest.mark.slow
def test_only_what_failed_is_judged_again_where_that_is_asked(lake: Lake) -> None:
    reverify(lake, Recovering(lambda name: name in "ab"))
    verifier = Recovering(lambda name: name == "b")
    found = reverify(lake, verifier, failed_only=True)
    assert (verifier.asked, found.success, found.invalid) == (2, 1, 1)
    assert len(lake.scores("verifier = 'recovering'")) == 6


@pytest.mark.slow
def test_a_condition_is_sql_that_reads(lake: Lake) -> None:
    with pytest.raises(RequestError, match="query failed"):
        reverify(lake, verifiers_of("qa_em"), where="nonsense = 1")
    with pytest.raises(RequestError, match="single SELECT"):
        reverify(lake, verifiers_of("qa_em"), where="TRUE); DELETE FROM trajectories; SELECT (1")
    assert reverify(lake, verifiers_of("qa_em"), where="id = 'a' -- and no more").chosen == 1


def rows_of(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_sound_file_is_proven(tmp_path: Path) -> None:
    path = rows_of(tmp_path, {"id": 1, "gold": "Green Lake", "question": "Which?"}, {"id": 2, "gold": ["Oslo"]})
    found = json.loads(flywheel("validate", "qa_em", "--input", path, "--json"))
    assert (found["proven"], found["gold"]["tried"], found["negatives"]["choice"]) == (True, 2, {"tried": 2, "mistaken": 0, "examples": []})


def test_broken_rows_count_as_not_judged(tmp_path: Path) -> None:
    path = rows_of(tmp_path, {"id": 1, "gold": "x1"}, {"id": 2}, {"id": 3, "gold": {"a": 1}}, {"id": 4, "gold": "x4", "options": []})
    path.write_text(path.read_text() + "nonsense\n")
    found = validate_rows("qa_em", path)
    assert (found.unjudged.mistaken, found.proven) == (3, False)


@pytest.mark.slow
def test_the_tasks_of_a_home_are_proven_each_by_its_verifier(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.add([TASKS[0], replace(TASKS[1], split="held_out"), TASKS[2]])
    found = validate_home(tmp_path, None, None)
    assert (found.proven, found.gold.tried) == (True, 4)
    assert validate_home(tmp_path, "held_out", None).gold.tried == 2
    with pytest.raises(RequestError, match="no tasks in the split"):
        validate_home(tmp_path, "test", None)
