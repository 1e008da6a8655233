"""What a wheel's headline claims: against the best policy before, with the harm that stages did; in the page and at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows.results import HARD_SPACE, evaluation_rows, sentences
from warehouse import Lake, Outcome, Policy, StopReason, Task, Trajectory

pytestmark = pytest.mark.slow

TASKS = 50
START = datetime(2030, 1, 1, tzinfo=UTC)
MENDED = {(1, "cpt"): 45, (1, "sft"): 20, (1, "rl"): 45}
"""A cold start that breaks what pre-training could do, and reinforcement that mends it."""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake(tmp_path) as lake:
        lake.add([Task(f"k{i}", "search", "q", ("a",), split="held_out", hops=1) for i in range(2 * TASKS)])
        yield lake


def tried(lake: Lake, solved: Mapping[tuple[int, str], int], first: int = 0, name: str = "") -> None:
    """A policy for each stage, which solves so many of fifty tasks, the first of them, counted from task `first`."""
    parent = None
    for (turn, stage), right in solved.items():
        policy = f"t{turn}-{stage}{name}"
        outcomes = [Outcome.SUCCESS if i < right else Outcome.FAILURE for i in range(TASKS)]
        lake.add([Policy(policy, parent, stage, "policies/x", "d", None, turn)])
        lake.add(
            Trajectory(
                f"{policy}-{i}", f"k{first + i}", policy, "eval", 5, (1,), (), StopReason.ANSWERED, outcome, None, 0, START, 0.1, turn,
                suite="held_out",
            )
            for i, outcome in enumerate(outcomes)
        )  # fmt: skip
        parent = policy


def said(lake: Lake) -> list[str]:
    return [sentence.replace(HARD_SPACE, " ") for sentence in sentences(lake)]


def test_what_mends_another_stages_harm_is_no_gain_and_the_harm_is_named(lake: Lake) -> None:
    tried(lake, MENDED)
    assert said(lake) == [
        "held_out: 90.0 % of unseen tasks solved; no gain over t1-cpt, the best policy before it, is shown.",
        "Before reinforcement learning of turn 1 the best policy was that of pre-training of turn 1, which solved "
        "90.0 % (78.6 % to 95.7 %): +0.0 points (p = 1.000, McNemar on 50 common tasks).",
        "The cold start of turn 1 did harm: −50.0 points (p < 0.001, McNemar on 50 common tasks) against pre-training of turn 1.",
    ]


def test_a_gain_over_every_earlier_policy_is_in_the_headline(lake: Lake) -> None:
    assert said(lake) == []
    tried(lake, {(1, "cpt"): 10})
    assert said(lake) == ["held_out: 20.0 % of unseen tasks solved after pre-training."]
    tried(lake, {(1, "sft"): 12, (1, "rl"): 40})
    assert said(lake)[0] == "held_out: 80.0 % of unseen tasks solved, 56.0 points more than by any policy before."
    assert len(said(lake)) == 2, "two tasks more or less are neither gain nor harm"


def test_with_several_attempts_a_task_counts_by_the_share_of_them_that_solved_it(lake: Lake) -> None:
    """One policy solves half of the tasks always, the next one seven of eight attempts at every task: it is far better."""
    for policy, parent, solves in (("t1-sft", None, lambda task, attempt: task % 2), ("t1-rl", "t1-sft", lambda task, attempt: attempt)):
        lake.add([Policy(policy, parent, policy[3:], "policies/x", "d", None, 1)])
        lake.add(
            Trajectory(
                f"{policy}-{task}-{attempt}", f"k{task}", policy, "eval", 5, (1,), (), StopReason.ANSWERED,
                Outcome.SUCCESS if solves(task, attempt) else Outcome.FAILURE, None, 0, START, 0.1, 1, suite="held_out", sample=attempt,
            )
            for task in range(40) for attempt in range(8)
        )  # fmt: skip
    assert said(lake)[0] == "held_out: 87.5 % of unseen tasks solved, 37.5 points more than by any policy before."
    assert "+37.5 points (p < 0.001, sign flips on 40 common tasks)" in said(lake)[1] and len(said(lake)) == 2
    (after,) = [row for row in evaluation_rows(lake) if row["policy"] == "t1-rl" and row["hops"] is None]
    assert after["change"] == pytest.approx(0.375) and after["p_value"] < 0.001
