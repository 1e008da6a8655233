"""Scores without an accepted answer: agreement within a group, confidence of the answer, both marked."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest

from eval.graders.base import verify_all
from eval.graders.unsupervised import Agreement, Confidence
from tests.eval.graders.test_verifiers import TASK, attempt
from warehouse.records import Outcome, Task


def group(*answers: str | None, task: Task = TASK) -> list:
    runs = [attempt("answer" if answer is not None else "search", answer or "q") for answer in answers]
    return [(task, replace(run, id=str(place))) for place, run in enumerate(runs)]


def test_the_majority_agrees() -> None:
    scores = verify_all(Agreement(), group("Green Lake", "the green lake", "Blue Lake", None))
    assert [(score.value, score.verdict) for score in scores] == [
        (0.5, Outcome.SUCCESS),
        (0.5, Outcome.SUCCESS),
        (0.25, Outcome.FAILURE),
        (0.0, Outcome.FAILURE),
    ]


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        ("gsm8k", ("18 dollars", "She makes $18.", "9*2=18", "17", "17")),
        ("number", ("5 km", "5.0 kilometres", "5000e-3 km", "5", "5")),
        ("date", ("20 July 1999", "1999-07-20", "on Tuesday, July 20th, 1999", "July 1999", "1999-07")),
        ("math", ("\\boxed{\\frac{1}{2}}", "x = 0.5", "The answer is 1/2.", "2", "2")),
        ("set", ("red; blue", "blue and red", '["blue", "red"]', "red", "red")),
    ],
)
def test_equal_answers_in_other_spellings_agree(kind: str, answers: tuple[str, ...]) -> None:
    task = replace(TASK, provenance={"verifier": kind})
    assert [score.value for score in Agreement().verify_all(group(*answers, task=task))] == [0.6] * 3 + [0.4] * 2


def test_a_tie_and_a_single_attempt_say_nothing() -> None:
    assert {score.verdict for score in Agreement().verify_all(group("x1", "x2"))} == {Outcome.FAILURE}
    assert [score.verdict for score in Agreement().verify_all(group("x1"))] == [Outcome.INVALID]


def test_confidence_is_the_mean_probability_of_the_answer() -> None:
    (task, run) = group("x1")[0]
    turns = (replace(run.turns[0], action_logprobs=(-0.1, -0.5, -0.3)),)
    sure, silent = Confidence().verify_all(
        [(task, replace(run, turns=turns)), (task, replace(run, turns=(replace(turns[0], action_logprobs=()),)))]
    )
    assert sure.value == pytest.approx(exp(-0.3))
    assert silent.verdict is Outcome.INVALID
