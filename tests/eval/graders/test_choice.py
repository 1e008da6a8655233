"""A verifier of one's own: named by the configuration, found by tasks where it is listed, and never a reason for a wrong zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from eval.graders.choice import find_verifier, grader_of, verifiers_of
from eval.graders.rows import verify_rows
from tests.eval.graders.test_verifiers import attempt
from warehouse.errors import RequestError
from warehouse.records import Outcome, Task, Trajectory

SOURCE = """
from eval.graders.base import graded
from eval.graders.verifiers import Grader
from warehouse.records import Score


def shouted(answer, golds, options):
    if answer == "BREAK":
        raise KeyError("no")
    return 1.0, answer == golds[0].upper()


def heard(answer, options):
    if answer == "BREAK":
        raise KeyError("no")
    return [answer] if answer == "LIST" else answer[0]


rule = Grader("shouted", "1", shouted, reading=heard)
taken = Grader("qa_em", "1", shouted)
nothing = 3


class Brief:
    name, version = "brief", "2"

    def verify(self, task, trajectory):
        if trajectory.id == "odd":
            return 1.0
        if trajectory.id == "other":
            return Score("somebody", "brief", "2", 1.0, "success")
        if trajectory.id == "broken":
            return 1 / 0
        return graded(self, trajectory, 1.0, len(trajectory.turns) == 1)


class Costly:
    def __init__(self):
        raise OSError("no licence")
"""


@pytest.fixture
def named(tmp_path: Path) -> Callable[[str], str]:
    (tmp_path / "mine.py").write_text(SOURCE)
    return lambda attribute: f"{tmp_path / 'mine.py'}:{attribute}"


def answered(answer: str, name: str = "t") -> Trajectory:
    return replace(attempt("answer", answer), id=name)


TASK = Task("k", "search", "?", ("ann",))


def test_a_user_rule_decides_which_answers_are_equal_and_their_text_does_where_it_fails(named: Callable[[str], str]) -> None:
    verifiers = verifiers_of("mine", {"mine": named("rule")})
    read = {answer: verifiers.read(TASK, answer) for answer in ("ann", "abe", "bob", "BREAK", "LIST")}
    assert read["ann"] == read["abe"] != read["bob"] and len(set(read.values())) == 4
    assert verifiers.read(TASK, None) is None


def test_a_rule_over_answers_judges_trajectories_and_rows(named: Callable[[str], str]) -> None:
    verifier = find_verifier(named("rule"))
    verdicts = [verifier.verify(TASK, answered(answer)).verdict for answer in ("ANN", "ann", "BREAK")]
    assert verdicts == [Outcome.SUCCESS, Outcome.FAILURE, Outcome.INVALID]
    assert grader_of(verifier) is not None and (verifier.name, verifier.version) == ("shouted", "1")
    rows = [{"id": n, "gold": ["ann"], "pred": answer} for n, answer in enumerate(("ANN", "ann", "BREAK"))]
    judged = list(verify_rows(named("rule"), rows))
    assert [row.verdict for row in judged] == verdicts and judged[2].error == "KeyError: 'no'"


def test_a_verifier_of_trajectories_is_invalid_wherever_it_gives_no_score(named: Callable[[str], str]) -> None:
    verifier = find_verifier(named("Brief"))
    assert verifier.verify(TASK, answered("a")).verdict is Outcome.SUCCESS
    for name, told in (("odd", "did not return a score"), ("other", "did not return a score"), ("broken", "ZeroDivisionError")):
        score = verifier.verify(TASK, answered("a", name))
        assert score.value is None and score.verdict is Outcome.INVALID and told in str(score.error)
        assert (score.trajectory_id, score.verifier, score.version) == (name, "brief", "2")


def test_tasks_name_what_is_built_in_and_what_is_listed_and_nothing_else(named: Callable[[str], str], tmp_path: Path) -> None:
    verifiers = verifiers_of("qa_em", {"mine": named("rule")})

    def chosen(name: object) -> str:
        return verifiers.of(replace(TASK, provenance={"verifier": name})).name

    assert [chosen(name) for name in ("mine", "math", None, [], "nobody")] == ["shouted", "math", "qa_em", "qa_em", "qa_em"]
    trace = tmp_path / "trace"
    (tmp_path / "planted.py").write_text(f"open({str(trace)!r}, 'w')\n")
    for name in (f"{tmp_path / 'planted.py'}:x", "os:system", named("Brief")):
        task = replace(TASK, provenance={"verifier": name})
        assert verifiers.of(task).name == "qa_em" and verifiers.lack(task)
    assert not trace.exists()
    assert verifiers_of("mine", {"mine": named("Brief")}).default.name == "brief"


@pytest.mark.parametrize(("attribute", "told"), [("none", "'none'"), ("nothing", "int"), ("taken", "'qa_em'"), ("Costly", "no licence")])
def test_what_is_not_a_verifier_is_refused(named: Callable[[str], str], attribute: str, told: str) -> None:
    with pytest.raises(RequestError, match=told) as refused:
        find_verifier(named(attribute))
    assert "\n" not in str(refused.value)
