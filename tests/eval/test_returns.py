from __future__ import annotations

import pytest

from eval.returns import EnvironmentReward
from warehouse.records import Outcome, Score, StopReason, Task, Trajectory, Turn


def score(*turns: tuple[float | None, str | None], stop: StopReason = StopReason.ANSWERED, **provenance: float) -> Score:
    """The score of turns of (reward, outcome of the call)."""
    made = tuple(Turn(i, (), (), "", "act", "", (), "", reward, outcome, 0.0, 0) for i, (reward, outcome) in enumerate(turns))
    trajectory = Trajectory("x", "t", "p", "rl", 9, (), made, stop, None, None, 0, None, None)
    return EnvironmentReward().verify(Task("t", "game", "?", (), provenance=dict(provenance)), trajectory)


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
    found = score(*turns)
    assert (found.value, found.verdict, found.error) == (value, verdict, None)


def test_a_task_may_say_from_where_on_it_is_a_success() -> None:
    assert score((0.7, "ok"), success=0.7).verdict is Outcome.SUCCESS
    assert score((0.7, "ok"), success=0.8).verdict is Outcome.FAILURE


def test_what_says_nothing_about_the_policy_is_invalid() -> None:
    for found in (score((1.0, "ok"), stop=StopReason.FAULT), score((None, "ok"))):
        assert (found.value, found.verdict) == (None, Outcome.INVALID)
        assert found.error
