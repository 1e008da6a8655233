from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eval.graders.state import StateVerifier
from warehouse.records import Call, Outcome, Score, StopReason, Task, Trajectory, Turn

REFERENCE = {"rooms/a/lit": False}


def task(reference: Any, *answers: str) -> Task:
    return Task("t", "tool_world", "?", answers, provenance={} if reference is None else {"reference": reference})


def trajectory(*made: Any, answer: str | None = "Done.", stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    calls = [Call("set", "{}", "ok", figures={} if one is None else {"state": one}) for one in made]
    calls += [] if answer is None else [Call("answer", answer, None)]
    turns = tuple(_turn(index, call) for index, call in enumerate(calls))
    return Trajectory("x", "t", "p", "rl", 9, (), turns, stop, None, None, 0, None, None)


def _turn(index: int, call: Call) -> Turn:
    return Turn(index, (), (), "", call.tool, call.arguments, (), "", None, call.outcome, 0.0, 0, calls=(call,))


def verdict(reference: Any, seen: Trajectory, *answers: str, strict: bool = False) -> Score:
    return StateVerifier(strict).verify(task(reference, *answers), seen)


@pytest.mark.parametrize(
    ("made", "value"),
    [
        (REFERENCE, 1.0),
        ({**REFERENCE, "rooms/b/lit": True}, 1.0),
        ({"rooms/a/lit": True}, 0.0),
        ({"rooms/b/lit": True}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_relevant_part_decides(made: dict[str, Any], value: float) -> None:
    score = verdict(REFERENCE, trajectory(made))
    assert (score.value, score.verdict) == (value, Outcome.SUCCESS if value else Outcome.FAILURE)


def test_the_last_state_counts_also_where_nothing_was_answered() -> None:
    seen = trajectory({}, REFERENCE, answer=None, stop=StopReason.MAX_TURNS)
    assert verdict(REFERENCE, seen).value == 1.0
    assert verdict(REFERENCE, trajectory(REFERENCE, {}, answer=None)).value == 0.0


def test_calls_that_no_world_received_changed_nothing() -> None:
    refused = Turn(0, (), (), "", "fly", "{}", (), "", None, "error", 0.0, 0, calls=(Call("fly", "{}", "error"),))
    score = verdict(REFERENCE, replace(trajectory(), turns=(refused,)))
    assert (score.value, score.verdict) == (0.0, Outcome.FAILURE)


def test_a_question_is_judged_by_its_answer_and_by_having_changed_nothing() -> None:
    assert verdict({}, trajectory({}, answer="42"), "42").value == 1.0
    assert verdict({}, trajectory(answer="42"), "42").value == 1.0
    assert verdict({}, trajectory({}, answer="41"), "42").value == 0.0
    assert verdict({}, trajectory({"rooms/a/lit": False}, answer="42"), "42").value == 0.0


@pytest.mark.parametrize(
    ("reference", "seen", "reason"),
    [
        (None, trajectory({}), "the task holds no state"),
        (["rooms"], trajectory({}), "the task holds no state"),
        (REFERENCE, trajectory(["rooms/a/lit"]), "the trajectory holds no state"),
        (REFERENCE, trajectory(None), "the trajectory holds no state"),
        (REFERENCE, trajectory(REFERENCE, stop=StopReason.FAULT), "ended by a fault"),
    ],
)
def test_what_cannot_be_judged_is_invalid_and_no_zero(reference: Any, seen: Trajectory, reason: str) -> None:
    score = verdict(reference, seen)
    assert (score.value, score.verdict) == (None, Outcome.INVALID)
    assert reason in (score.error or "")


def test_in_the_strict_form_nothing_else_may_change() -> None:
    assert verdict(REFERENCE, trajectory({**REFERENCE, "rooms/b/lit": True}), strict=True).value == 0.0
    assert verdict(REFERENCE, trajectory(REFERENCE), strict=True).value == 1.0
