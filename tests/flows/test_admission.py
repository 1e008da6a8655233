"""Imported tasks are proven: the accepted answer passes and a wrong one fails, by every verifier; the rest is set aside with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eval.graders.verifiers import GRADERS, Grader
from flows.data.imports import Proof, prove
from warehouse import Task


def task(number: int, answers: Any, verifier: str, **more: Any) -> Task:
    place = {"file": "rows.jsonl", "line": number}
    solution = {"solution": more.pop("solution")} if "solution" in more else {}
    return Task(
        str(number),
        "python",
        f"question {number}?",
        tuple(answers),
        provenance={"place": place, "verifier": verifier, **more},
        proofs=solution,
    )


def proven(verifier: str, *rows: Any, **options: Any) -> Proof:
    tasks = [task(number, row, verifier, options=options) for number, row in enumerate(rows, start=1)]
    return prove(tasks, GRADERS[verifier])


KINDS: tuple[tuple[str, list[Any], dict[int, str]], ...] = (
    ("qa_em", [["Ann"], ["C++", "Cpp"], ["The The"], ["3.5"], ["red; blue"], ["Vitamin A"], ["¡Sí!"], ["北京"], ["a"], ["O'Neil"]], {}),
    ("squad_em", [["Ann"], ["the"], ["50%"], ["!!!"]], {}),
    ("gsm8k", [["8"], ["1,000"], ["many"], ["-3.5"], ["8", "eight legs"]], {3: "not_judgeable", 5: "not_judgeable"}),
    ("number", [["5 kg"], ["3.2"], ["soon"], ["1e3"]], {3: "not_judgeable"}),
    ("date", [["2 May 1999"], ["1999"], ["soon"]], {3: "not_judgeable"}),
    ("math", [["1/2"], ["x^2+1"], ["\\frac{"], ["\\frac{1}{2}"]], {3: "not_judgeable"}),
)


@pytest.mark.parametrize(("verifier", "rows", "faults"), KINDS)
def test_golds_that_cannot_be_read_are_set_aside(verifier: str, rows: list[Any], faults: dict[int, str]) -> None:
    proof = proven(verifier, *rows)
    assert {failure.item["line"]: failure.kind for failure in proof.failures} == faults
    assert len(proof.proven) == len(rows) - len(faults) and not proof.unproven


def test_a_verifier_that_tells_nothing_apart_admits_nothing() -> None:
    rules: dict[str, Any] = {
        "every wrong answer passes": lambda answer, golds, options: (1.0, bool(answer.strip())),
        "an empty answer passes": lambda answer, golds, options: (1.0, True),
        "its own accepted answer 'Ann' does not pass": lambda answer, golds, options: (0.0, False),
    }
    for reason, rule in rules.items():
        proof = prove([task(1, ["Ann"], "mine"), task(2, ["Bob"], "mine")], Grader("mine", "1", rule))
        assert not proof.proven and [failure.kind for failure in proof.failures] == ["not_proven", "not_proven"]
        assert reason in proof.failures[0].reason, proof.failures[0].reason


ADD = "def add(a, b):\n    return a + b\n"
LISTED = {"test_list": ["assert add(1, 2) == 3"]}
CODE = (
    (LISTED, ADD, None),
    (LISTED, ADD.replace("+", "-"), "the reference solution does not pass"),
    (LISTED, None, None),
    ({"test_list": ["assert True"]}, None, "cannot judge it"),
    ({"test_list": ["assert add(1, 2) =="]}, ADD, "cannot judge it"),
    ({"test": "x"}, ADD, "gold has no entry_point"),
    ({"test": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"}, ADD, None),
    (
        {"test": "def check(candidate):\n    assert candidate(1, 2) == 4\n", "entry_point": "add"},
        ADD,
        "the reference solution does not pass",
    ),
)


@pytest.mark.slow
def test_tests_of_code_take_the_solution_and_refuse_a_wrong_program() -> None:
    """Within the time for proofs; later ones are admitted unproven and counted."""
    rows = enumerate(CODE, start=1)
    tasks = [task(n, [json.dumps(gold)], "code", **({} if given is None else {"solution": given})) for n, (gold, given, _) in rows]
    proof = prove(tasks, GRADERS["code"])
    told = {failure.item["line"]: failure.reason for failure in proof.failures}
    assert told.keys() == {number for number, (_, _, reason) in enumerate(CODE, start=1) if reason}
    assert all(CODE[line - 1][2] in reason for line, reason in told.items()), told  # type: ignore[operator]
    late = prove(tasks[:3], GRADERS["code"], seconds=-1)
    assert (len(late.proven), late.unproven, late.failures) == (3, 3, [])
