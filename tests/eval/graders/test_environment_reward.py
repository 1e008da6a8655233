from __future__ import annotations

from dataclasses import replace

import pytest

from eval.graders.state import EnvironmentReward
from warehouse.records import Call, Outcome, Score, StopReason, Task, Trajectory, Turn


def trajectory(*paid: tuple[float | None, str | None], stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    """A trajectory whose turns have one call each, of (reward, outcome); an action that cannot be read has no call."""
    turns = tuple(_turn(index, reward, outcome) for index, (reward, outcome) in enumerate(paid))
    return Trajectory("x", "t", "p", "rl", 9, (), turns, stop, None, None, 0, None, None)


def _turn(index: int, reward: float | None, outcome: str | None) -> Turn:
    calls = () if outcome == "unparsable" else (Call("act", "", outcome, reward=reward),)
    return Turn(index, (), (), "", "act", "", (), "", reward, outcome, 0.0, 0, calls=calls)


def score(seen: Trajectory, **provenance: object) -> Score:
    return EnvironmentReward().verify(Task("t", "game", "?", (), provenance=dict(provenance)), seen)


@pytest.mark.parametrize(
    ("turns", "value", "verdict"),
    [
        ([(0.0, "ok"), (1.0, "ok")], 1.0, Outcome.SUCCESS),
        ([(0.5, "ok"), (0.25, "ok")], 0.75, Outcome.FAILURE),
        ([(-1.0, "ok"), (None, "error")], -1.0, Outcome.FAILURE),
        ([(None, "unparsable"), (None, "error")], 0.0, Outcome.FAILURE),
        ([], 0.0, Outcome.FAILURE),
    ],
)
def test_the_return_is_the_value(turns: list[tuple[float | None, str | None]], value: float, verdict: Outcome) -> None:
    found = score(trajectory(*turns))
    assert (found.value, found.verdict, found.error) == (value, verdict, None)


def test_what_was_trained_on_is_not_what_the_environment_paid() -> None:
    seen = trajectory((0.0, "ok"), (1.0, "ok"))
    composed = replace(seen, turns=tuple(replace(turn, reward=None) for turn in seen.turns))
    assert score(composed) == score(seen)


def test_a_run_that_ends_before_it_is_paid_has_earned_nothing() -> None:
    found = score(trajectory((None, "ok"), stop=StopReason.MAX_TURNS))
    assert (found.value, found.verdict) == (0.0, Outcome.FAILURE)


def test_what_says_nothing_about_the_policy_is_invalid() -> None:
    paid = trajectory((1.0, "ok"))
    for found in (
        score(replace(paid, stop_reason=StopReason.FAULT)),
        score(trajectory((None, "ok"))),
        *(score(paid, success=odd) for odd in ("1", None, True, [])),
    ):
        assert (found.value, found.verdict) == (None, Outcome.INVALID)
        assert found.error
