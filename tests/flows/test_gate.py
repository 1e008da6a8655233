"""The gate: the first policy passes, a better one passes; one that falls on a suite or is not shown to be better does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.config import load_config
from flows.context import RunContext
from flows.evaluation_config import EvaluationConfig
from flows.stages.gate import ALL, compare, objection, promote
from tests.flows.homes import ended, home_at
from warehouse import Outcome, Policy, Task

pytestmark = pytest.mark.slow

SETTINGS = ('evaluation.suites={"held_out":{}}', "evaluation.gate={}")


@pytest.fixture
def context(tmp_path: Path) -> Iterator[RunContext]:
    with home_at(tmp_path, *SETTINGS, profile="quickstart") as context:
        context.lake.add([Task(f"k{i}", "search", "q", ("a",), split="held_out") for i in range(50)])
        yield context


def evaluated(context: RunContext, turn: int, solved: int, invalid: int = 0) -> None:
    policy = f"t{turn}-rl"
    outcomes = [Outcome.SUCCESS if i < solved else Outcome.FAILURE for i in range(50 - invalid)] + [Outcome.INVALID] * invalid
    tried = [ended(f"{policy}-{i}", f"k{i}", outcome, policy, wheel_turn=turn, suite="held_out") for i, outcome in enumerate(outcomes)]
    context.lake.add([Policy(policy, None, "rl", "policies/x", f"digest of {policy}", None, turn), *tried])


def test_the_first_is_promoted_and_a_better_one_after_it(context: RunContext) -> None:
    evaluated(context, 1, 20)
    assert promote(context, 1)["promoted"] is True
    evaluated(context, 2, 40, invalid=5)
    decision = promote(context, 2)
    assert decision["promoted"] is True and "+44.4 points on 45 tasks" in decision["reason"]
    assert decision["held_out"]["tasks"] == 45 and decision["held_out"]["p_value"] < 0.001
    assert {policy.id for policy in context.lake.policies("promoted")} == {"t1-rl", "t2-rl"}


def test_one_that_falls_is_kept_out_with_the_reason(context: RunContext) -> None:
    evaluated(context, 1, 40)
    promote(context, 1)
    evaluated(context, 2, 20)
    assert promote(context, 2)["promoted"] is False
    assert [failure.kind for failure in context.lake.failures("gate")] == ["not_promoted"]
    assert [policy.id for policy in context.lake.policies("promoted")] == ["t1-rl"]


def test_a_policy_that_learned_nothing_is_not_promoted(context: RunContext) -> None:
    evaluated(context, 1, 20)
    (made,) = context.lake.policies()
    context.lake.add([replace(made, id="t0-init", stage="init", wheel_turn=0)])
    decision = promote(context, 1)
    assert decision["promoted"] is False and "t0-init" in decision["reason"]


def test_it_decides_on_its_own_suites_and_not_on_those_that_are_reported(context: RunContext) -> None:
    own = load_config("quickstart", ('evaluation.suites={"other":{}}', 'evaluation.gate={"held_out":{}}'))
    decided = replace(context, config=own)
    evaluated(decided, 1, 20)
    promote(decided, 1)
    evaluated(decided, 2, 40)
    decision = promote(decided, 2)
    assert decision["promoted"] is True and decision["held_out"]["tasks"] == 50 and "other" not in decision


def test_a_turn_that_made_no_policy_keeps_the_champion(context: RunContext) -> None:
    evaluated(context, 1, 20)
    promote(context, 1)
    decision = promote(context, 2)
    assert (decision["promoted"], decision["champion"]) == (False, "t1-rl")
    assert len(context.lake.failures("gate")) == 1


def comparison(**suites: tuple[int, int, int]) -> dict[str, dict[str, Any]]:
    """Suites as (tasks, solved by the champion alone, solved by the candidate alone), and all of them together."""
    rows, everything = {}, ({}, {})
    for name, (tasks, lost, won) in suites.items():
        before = {(name, i): i < lost for i in range(tasks)}
        after = {(name, i): lost <= i < lost + won for i in range(tasks)}
        rows[name] = compare(before, after)
        everything[0].update(before)
        everything[1].update(after)
    return rows | {ALL: compare(*everything)}


@pytest.mark.parametrize(
    ("suites", "said"),
    [
        ({"easy": (500, 0, 30)}, ""),
        ({"easy": (500, 3, 5)}, "not better"),
        ({"easy": (500, 20, 0)}, "easy by 4.0 points"),
        ({"easy": (500, 10, 5), "deep": (500, 0, 200)}, ""),
        ({"easy": (500, 0, 30), "deep": (0, 0, 0)}, "no task of deep"),
        ({}, "no task of any suite"),
    ],
)
def test_only_what_is_better_on_all_and_worse_on_none_may_pass(suites: dict[str, tuple[int, int, int]], said: str) -> None:
    objected = objection(comparison(**suites), EvaluationConfig())
    assert said in objected and bool(objected) == bool(said)
