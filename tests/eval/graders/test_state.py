"""Verifiers of what a trajectory did and was paid: the final state, and the return."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eval.graders.state import EnvironmentReward, StateVerifier
from warehouse.records import Call, Outcome, Score, StopReason, Task, Trajectory, Turn

REFERENCE = {"rooms/a/lit": False}
MORE = {**REFERENCE, "rooms/b/lit": True}


def of_calls(*calls: Call, stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    """A trajectory of a turn for each call; an action that cannot be read has no call."""
    turns = tuple(_turn(index, call, () if call.outcome == "unparsable" else (call,)) for index, call in enumerate(calls))
    return Trajectory("x", "t", "p", "rl", 9, (), turns, stop, None, None, 0, None, None)


def _turn(index: int, call: Call, calls: tuple[Call, ...]) -> Turn:
    return Turn(index, (), (), "", call.tool, call.arguments, (), "", call.reward, call.outcome, 0.0, 0, calls=calls)


def made(*changes: Any, answer: str | None = "Done.", stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    """A trajectory whose calls have these changes as their state."""
    calls = [Call("set", "{}", "ok", figures={} if one is None else {"state": one}) for one in changes]
    return of_calls(*calls, *([] if answer is None else [Call("answer", answer, None)]), stop=stop)


def judged(reference: Any, seen: Trajectory, *answers: str, strict: bool = False) -> Score:
    task = Task("t", "tool_world", "?", answers, provenance={} if reference is None else {"reference": reference})
    return StateVerifier(strict).verify(task, seen)


@pytest.mark.parametrize(
    ("changes", "value"), [(REFERENCE, 1.0), (MORE, 1.0), ({"rooms/a/lit": True}, 0.0), ({"rooms/b/lit": True}, 0.0), ({}, 0.0)]
)
def test_the_relevant_part_decides(changes: dict[str, Any], value: float) -> None:
    score = judged(REFERENCE, made(changes))
    assert (score.value, score.verdict) == (value, Outcome.SUCCESS if value else Outcome.FAILURE)


def test_in_the_strict_form_nothing_else_may_change() -> None:
    assert [judged(REFERENCE, made(changes), strict=True).value for changes in (MORE, REFERENCE)] == [0.0, 1.0]


def test_the_last_state_counts_also_where_nothing_was_answered() -> None:
    assert judged(REFERENCE, made({}, REFERENCE, answer=None, stop=StopReason.MAX_TURNS)).value == 1.0
    assert judged(REFERENCE, made(REFERENCE, {}, answer=None)).value == 0.0


def test_calls_that_no_world_received_changed_nothing() -> None:
    score = judged(REFERENCE, of_calls(Call("fly", "{}", "error")))
    assert (score.value, score.verdict) == (0.0, Outcome.FAILURE)


@pytest.mark.parametrize(
    ("seen", "value"),
    [
        (made({}, answer="42"), 1.0),
        (made(answer="42"), 1.0),
        (made({}, answer="41"), 0.0),
        (made(REFERENCE, answer="42"), 0.0),
    ],
)
def test_a_question_is_judged_by_its_answer_and_by_having_changed_nothing(seen: Trajectory, value: float) -> None:
    assert judged({}, seen, "42").value == value


@pytest.mark.parametrize(
    ("reference", "seen", "reason"),
    [
        ({}, made({}), "neither a change nor an answer"),
        (None, made({}), "the task has no state"),
        (["rooms"], made({}), "the task has no state"),
        (REFERENCE, made(["rooms/a/lit"]), "the trajectory has no state"),
        (REFERENCE, made(None), "the trajectory has no state"),
        (REFERENCE, made(REFERENCE, stop=StopReason.FAULT), "fault"),
    ],
)
def test_what_cannot_be_judged_is_invalid_and_no_zero(reference: Any, seen: Trajectory, reason: str) -> None:
    score = judged(reference, seen)
    assert (score.value, score.verdict) == (None, Outcome.INVALID)
    assert reason in (score.error or "")


def paid(*rewards: float | None, outcome: str = "ok", stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    return of_calls(*(Call("act", "", outcome, reward=reward) for reward in rewards), stop=stop)


def returned(seen: Trajectory, **provenance: object) -> Score:
    return EnvironmentReward().verify(Task("t", "game", "?", (), provenance=dict(provenance)), seen)


@pytest.mark.parametrize(
    ("seen", "value", "verdict"),
    [
        (paid(0.0, 1.0), 1.0, Outcome.SUCCESS),
        (paid(0.5, 0.25), 0.75, Outcome.FAILURE),
        (paid(-1.0, None), -1.0, Outcome.FAILURE),
        (of_calls(Call("act", "", "unparsable"), Call("act", "", "error")), 0.0, Outcome.FAILURE),
        (paid(), 0.0, Outcome.FAILURE),
        (paid(None, stop=StopReason.MAX_TURNS), 0.0, Outcome.FAILURE),
    ],
)
def test_the_return_is_the_value_and_what_ends_before_it_is_paid_has_earned_nothing(
    seen: Trajectory, value: float, verdict: Outcome
) -> None:
    found = returned(seen)
    assert (found.value, found.verdict, found.error) == (value, verdict, None)


@pytest.mark.parametrize("least", [0, -110])
def test_a_return_without_a_reward_is_no_success(least: int) -> None:
    assert returned(paid(None, stop=StopReason.MAX_TURNS), success=least).verdict is Outcome.FAILURE
    assert returned(paid(0.0, stop=StopReason.MAX_TURNS), success=least).verdict is Outcome.SUCCESS


def test_what_was_trained_on_is_not_what_the_environment_paid() -> None:
    seen = paid(0.0, 1.0)
    composed = replace(seen, turns=tuple(replace(turn, reward=None) for turn in seen.turns))
    assert returned(composed) == returned(seen)


def test_what_says_nothing_about_the_policy_is_invalid() -> None:
    unpaid = [returned(paid(1.0, stop=StopReason.FAULT)), returned(paid(None))]
    for found in (*unpaid, *(returned(paid(1.0), success=odd) for odd in ("1", None, True, []))):
        assert (found.value, found.verdict) == (None, Outcome.INVALID) and found.error
