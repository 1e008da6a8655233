"""Each trait of a suite can be kept, not kept and, where it rests on runs, not known."""

from __future__ import annotations

import pytest

from eval.statistics import Interval
from eval.suites.figures import Figure
from eval.suites.validation import (
    Tally,
    TraitState,
    Validation,
    grading,
    label_quality,
    not_saturated,
    one_command,
    one_headline,
    size,
)

GOOD = Validation(Tally(10, 0), {"empty": Tally(10, 0)}, Tally(10, 0))
WRONG_LABEL = Validation(Tally(10, 1, ["7: 'x'"]), {"empty": Tally(10, 0)}, Tally(10, 0))
FOOLED = Validation(Tally(10, 0), {"denied": Tally(10, 2, ["3: 'not x'"])}, Tally(10, 0))


def figure(value: float, low: float, high: float) -> Figure:
    return Figure("success", 100, Interval(value, low, high))


def test_a_thousand_tasks_are_enough_and_fewer_say_what_they_show() -> None:
    assert size(1000).state is TraitState.KEPT
    few = size(164)
    assert few.state is TraitState.NOT_KEPT
    assert "a difference of 15" in few.reason
    assert "no difference at all" in size(3).reason and "no difference at all" in size(0).reason


def test_labels_and_grading_are_told_apart() -> None:
    assert (label_quality(GOOD).state, grading(GOOD).state) == (TraitState.KEPT, TraitState.KEPT)
    assert (label_quality(WRONG_LABEL).state, grading(WRONG_LABEL).state) == (TraitState.NOT_KEPT, TraitState.KEPT)
    assert (label_quality(FOOLED).state, grading(FOOLED).state) == (TraitState.KEPT, TraitState.NOT_KEPT)
    assert "7: 'x'" in label_quality(WRONG_LABEL).reason and "denied" in grading(FOOLED).reason
    assert grading(Validation(Tally(10, 0), {}, Tally())).state is TraitState.NOT_KNOWN, "nothing wrong was tried"
    assert (label_quality(None).state, grading(None).state) == (TraitState.NOT_KNOWN, TraitState.NOT_KNOWN)


def test_the_headline_needs_a_result() -> None:
    assert one_headline("success", None, None).state is TraitState.NOT_KNOWN
    assert one_headline("success", figure(0.5, 0.4, 0.6), None).state is TraitState.KEPT
    assert one_headline("success", figure(0.5, 0.4, 0.6), "9 of 100 attempts are missing").state is TraitState.NOT_KEPT
    assert one_headline("pass@8", Figure("pass@8", 84, None), None).state is TraitState.NOT_KEPT


def test_the_command_must_draw_the_tasks_that_were_evaluated() -> None:
    assert one_command("flywheel eval", "d1", None).state is TraitState.NOT_KNOWN
    assert one_command("flywheel eval", "d1", "d1").state is TraitState.KEPT
    assert one_command("flywheel eval", "d1", "d2").state is TraitState.NOT_KEPT


@pytest.mark.parametrize(
    ("value", "state"),
    [((0.5, 0.45, 0.55), TraitState.KEPT), ((0.999, 0.99, 1.0), TraitState.NOT_KEPT), ((0.0, 0.0, 0.02), TraitState.NOT_KEPT)],
)
def test_a_suite_that_nobody_or_everybody_solves_is_saturated(value: tuple[float, float, float], state: TraitState) -> None:
    assert not_saturated("p", figure(*value)).state is state
    assert not_saturated(None, None).state is TraitState.NOT_KNOWN
