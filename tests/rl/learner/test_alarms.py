"""Alarms that are on by default: tools that nobody calls, calls that fail, and tasks that nothing judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rl.learner.config import MonitorConfig
from rl.learner.metrics import MetricMonitor, describe
from tests.rl.toy import trajectory, turn
from warehouse.records import OFFERED, Outcome, StopReason, Trajectory, Turn


def answered() -> Turn:
    return turn(0, [7], [-0.1], tool="answer")


def called(outcome: str) -> Turn:
    searched = turn(0, [5], [-0.5])
    return replace(searched, calls=tuple(replace(call, outcome=outcome) for call in searched.calls))


def attempt(task: str, sample: int, first: Turn, reward: float | None = 1.0, tools: Sequence[str] = ("search",)) -> Trajectory:
    return replace(trajectory(task, sample, [first], reward), provenance={OFFERED: list(tools)})


def alarms(step: Sequence[Trajectory], steps: int = 1) -> set[str]:
    monitor = MetricMonitor(MonitorConfig().limits)
    found = [alert.limit.sign for number in range(1, steps + 1) for alert in monitor.check(number, describe(step))]
    return set(found) & {"without_calls", "tool_errors", "unjudged_tasks"}


BROKEN = replace(attempt("a", 0, called("fault"), None), stop_reason=StopReason.FAULT)


@pytest.mark.parametrize(
    ("step", "raised"),
    [
        ([attempt("a", 0, answered()), attempt("b", 0, answered(), 0.0)], {"without_calls"}),
        ([attempt("a", 0, answered()), attempt("b", 0, called("ok"))], set()),
        ([attempt("a", 0, answered(), tools=())], set()),
        ([replace(attempt("a", 0, answered()), horizon=1)], set()),
        ([attempt("a", 0, called("error")), attempt("b", 0, called("error")), attempt("c", 0, called("miss"))], {"tool_errors"}),
        ([BROKEN, BROKEN, attempt("b", 0, called("ok"))], {"tool_errors"}),
        ([attempt("a", 0, called("ok"), None), attempt("a", 1, called("ok"), None), attempt("b", 0, called("ok"))], {"unjudged_tasks"}),
        ([attempt("a", 0, called("ok"), None), attempt("a", 1, called("ok"), 0.0)], set()),
        ([], set()),
    ],
)
def test_each_mistake_of_a_setup_raises_its_alarm(step: Sequence[Trajectory], raised: set[str]) -> None:
    assert alarms(step, steps=3) == raised


def test_what_cannot_be_counted_is_absent_and_no_zero() -> None:
    assert not {"without_calls", "tool_errors", "unjudged_tasks"} & describe([]).keys()
    assert attempt("a", 0, answered(), None).outcome is Outcome.INVALID
    assert describe([attempt("a", 0, answered(), None)])["unjudged_tasks"] == 1.0
