"""Verifiers of the final answer, and scores without an accepted one: agreement within a group, confidence of the answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from math import exp

import pytest

from eval.graders.base import Verifier, verify_all
from eval.graders.choice import verifiers_of
from eval.graders.unsupervised import Agreement, Confidence
from eval.graders.verifiers import GRADERS, VERIFIERS, AnswerVerifier
from warehouse.records import Outcome, Score, StopReason, Task, Trajectory, Turn

EXACT_MATCH: Verifier = VERIFIERS["qa_em"]
TASK = Task("t1", "search", "Where?", ("Green Lake",), hops=2)


def attempt(tool: str | None, text: str | None, stop: StopReason = StopReason.ANSWERED, observation: str = "") -> Trajectory:
    turn = Turn(0, (1,), (-0.1,), f"<{tool}> {text}</{tool}>", tool, text, (), observation, None, "ok", 0.1, 1)
    started = datetime(2030, 1, 1, tzinfo=UTC)
    return Trajectory("x1", "t1", "p", "eval", 4, (1,), (turn,), stop, None, None, 0, started, 1.0)


def test_the_answer_decides() -> None:
    right = EXACT_MATCH.verify(TASK, attempt("answer", " the green lake."))
    assert right == Score("x1", "qa_em", "5", 1.0, Outcome.SUCCESS, read="the green lake.")
    assert EXACT_MATCH.verify(TASK, attempt("answer", "Blue Lake")).value == 0.0


def test_only_the_answer_action_counts() -> None:
    judged = EXACT_MATCH.verify(TASK, attempt("search", "Green Lake", StopReason.MAX_TURNS, "<answer> Green Lake</answer>"))
    assert (judged.value, judged.verdict) == (0.0, Outcome.FAILURE)


def test_a_fault_is_invalid_and_never_zero() -> None:
    judged = EXACT_MATCH.verify(TASK, attempt("answer", "Green Lake", StopReason.FAULT))
    assert (judged.value, judged.verdict) == (None, Outcome.INVALID) and judged.error


def test_a_task_that_accepts_nothing_cannot_be_judged() -> None:
    assert EXACT_MATCH.verify(Task("t1", "search", "?", ()), attempt("answer", "x1")).verdict is Outcome.INVALID


COLOURS = Task("t1", "search", "Which colours?", ("red", "blue"), provenance={"set": True})


def test_a_question_that_asks_for_a_set_wants_all_of_it() -> None:
    answers = ("blue; red", "red", "red; blue; green", "red or blue")
    verdicts = [EXACT_MATCH.verify(COLOURS, attempt("answer", text)).verdict for text in answers]
    assert verdicts == [Outcome.SUCCESS, *[Outcome.FAILURE] * 3]
    assert AnswerVerifier(GRADERS["qa_f1"]).verify(COLOURS, attempt("answer", "red")).value == pytest.approx(2 / 3)


def test_a_task_names_its_verifier_and_its_options() -> None:
    task = Task("t1", "code", "How much?", ("100",), provenance={"verifier": "number", "options": {"relative": 0.01}})
    verifier = verifiers_of("qa_em").of(task)
    assert verifier.name == "number"
    assert verifier.verify(task, attempt("answer", "101")).verdict is Outcome.SUCCESS


def group(*answers: str | None, task: Task = TASK) -> list:
    runs = [attempt("answer" if answer is not None else "search", answer or "q") for answer in answers]
    return [(task, replace(run, id=str(place))) for place, run in enumerate(runs)]


def test_the_majority_agrees() -> None:
    scores = verify_all(Agreement(), group("Green Lake", "the green lake", "Blue Lake", None))
    assert [score.value for score in scores] == [0.5, 0.5, 0.25, 0.0]
    assert [score.verdict for score in scores] == [Outcome.SUCCESS] * 2 + [Outcome.FAILURE] * 2


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


def test_confidence_is_the_mean_probability_of_the_answer() -> None:
    (task, run) = group("x1")[0]
    told = [replace(run, turns=(replace(run.turns[0], action_logprobs=each),)) for each in ((-0.1, -0.5, -0.3), ())]
    sure, silent = Confidence().verify_all([(task, each) for each in told])
    assert sure.value == pytest.approx(exp(-0.3))
    assert silent.verdict is Outcome.INVALID


def test_a_tie_and_a_single_attempt_say_nothing() -> None:
    assert {score.verdict for score in Agreement().verify_all(group("x1", "x2"))} == {Outcome.FAILURE}
    assert [score.verdict for score in Agreement().verify_all(group("x1"))] == [Outcome.INVALID]
