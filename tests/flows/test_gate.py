"""The gate: the first policy passes, a better one passes, one that falls on a suite does not, and the reason is a row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows.config import load_config
from flows.home import Home
from flows.stages.gate import promote
from flows.workshop import Workshop
from warehouse import Lake, Outcome, Policy, StopReason, Task, Trajectory

SETTINGS = ['evaluation.suites={"held_out":{}}']


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Workshop]:
    with Lake(tmp_path) as lake:
        lake.add([Task(f"k{i}", "search", "q", ("a",), split="held_out") for i in range(50)])
        yield Workshop(Home(tmp_path), load_config("quickstart", SETTINGS), lake)


def evaluated(shop: Workshop, turn: int, solved: int, invalid: int = 0) -> None:
    policy = f"t{turn}-rl"
    outcomes = [Outcome.SUCCESS if i < solved else Outcome.FAILURE for i in range(50 - invalid)] + [Outcome.INVALID] * invalid
    trajectories = [
        Trajectory(
            f"{policy}-{i}", f"k{i}", policy, "eval", 5, (1,), (), StopReason.ANSWERED, outcome, None, 0, datetime.now(UTC), 0.1, turn,
            suite="held_out",
        )
        for i, outcome in enumerate(outcomes)
    ]  # fmt: skip
    shop.lake.add([Policy(policy, None, "rl", "policies/x", "d", None, turn), *trajectories])


@pytest.mark.slow
def test_the_first_is_promoted_and_a_better_one_after_it(shop: Workshop) -> None:
    evaluated(shop, 1, 20)
    assert promote(shop, 1)["promoted"] is True
    evaluated(shop, 2, 40, invalid=5)
    decision = promote(shop, 2)
    assert decision["promoted"] is True
    assert decision["held_out"]["tasks"] == 45
    assert decision["held_out"]["mcnemar_p_value"] < 0.001
    assert {policy.id for policy in shop.lake.policies("promoted")} == {"t1-rl", "t2-rl"}


def test_one_that_falls_is_kept_out_with_the_reason(shop: Workshop) -> None:
    evaluated(shop, 1, 40)
    promote(shop, 1)
    evaluated(shop, 2, 20)
    assert promote(shop, 2)["promoted"] is False
    assert [failure.kind for failure in shop.lake.failures("gate")] == ["not_promoted"]
    assert [policy.id for policy in shop.lake.policies("promoted")] == ["t1-rl"]
