"""What a wheel's headline claims: against the best policy before, with the harm that stages did; in the page and at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from flows.results import HARD_SPACE, evaluation_rows, sentences
from tests.flows.homes import ended
from warehouse import Lake, Outcome, Policy, Task

pytestmark = pytest.mark.slow

TASKS = 50
MENDED = {(1, "cpt"): 45, (1, "sft"): 20, (1, "rl"): 45}
"""A cold start that breaks what pre-training could do, and reinforcement that mends it."""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake(tmp_path) as lake:
        lake.add([Task(f"k{i}", "search", "q", ("a",), split="held_out", hops=1) for i in range(TASKS)])
        yield lake


def tried(lake: Lake, solved: Mapping[tuple[int, str], int]) -> None:
    """A policy for each stage, which solves the first so many of fifty tasks."""
    parent = None
    for (turn, stage), right in solved.items():
        policy = f"t{turn}-{stage}"
        outcomes = [Outcome.SUCCESS if i < right else Outcome.FAILURE for i in range(TASKS)]
        lake.add([Policy(policy, parent, stage, "policies/x", "d", None, turn)])
        lake.add(ended(f"{policy}-{i}", f"k{i}", made, policy, wheel_turn=turn, suite="held_out") for i, made in enumerate(outcomes))
        parent = policy


def said(lake: Lake) -> list[str]:
    return [sentence.replace(HARD_SPACE, " ") for sentence in sentences(lake)]


def test_what_mends_another_stages_harm_is_no_gain_and_the_harm_is_named(lake: Lake) -> None:
    tried(lake, MENDED)
    headline, before, harm = said(lake)
    assert "90.0 %" in headline and "no significant gain over t1-cpt" in headline
    assert "90.0 % (78.6 % to 95.7 %): +0.0 points (p = 1.000, McNemar on 50 common tasks)" in before
    assert "cold start of iteration 1" in harm and "−50.0 points (p < 0.001, McNemar on 50 common tasks)" in harm


def test_a_gain_over_every_earlier_policy_is_in_the_headline(lake: Lake) -> None:
    assert said(lake) == []
    tried(lake, {(1, "cpt"): 10})
    assert len(said(lake)) == 1 and "20.0 %" in said(lake)[0]
    tried(lake, {(1, "sft"): 12, (1, "rl"): 40})
    assert "80.0 %" in said(lake)[0] and "56.0 points more" in said(lake)[0]
    assert len(said(lake)) == 2, "two tasks more or less are neither gain nor harm"


@pytest.mark.parametrize(
    ("second", "told"), [(45, "rose"), (29, "did not change significantly"), (2, "fell")], ids=["gain", "neither", "loss"]
)
def test_the_last_lines_say_what_rose_over_the_iterations_with_a_bar_for_each(lake: Lake, second: int, told: str) -> None:
    tried(lake, {(1, "cpt"): 5, (1, "rl"): 28, (2, "sft"): 40, (2, "rl"): second})
    sentence, *bars = said(lake)[-3:]
    assert sentence.startswith(f"Success {told} from iteration 1 to iteration 2: {2 * (second - 28):+.1f}".replace("-", "−"))
    assert "McNemar on 50 common tasks" in sentence
    assert bars[0] == f"iteration 1  {'█' * 22}▍{'░' * 17} 56.0 %"
    assert bars[1].endswith(f" {2 * second:.1f} %") and len(bars[1].partition("  ")[2].split()[0]) == 40


def test_with_several_attempts_a_task_counts_by_the_share_of_them_that_solved_it(lake: Lake) -> None:
    """One policy solves half of the tasks always, the next one seven of eight attempts at every task: it is far better."""
    for policy, parent, solves in (("t1-sft", None, lambda task, attempt: task % 2), ("t1-rl", "t1-sft", lambda task, attempt: attempt)):
        lake.add([Policy(policy, parent, policy[3:], "policies/x", "d", None, 1)])
        outcomes = {
            (task, attempt): Outcome.SUCCESS if solves(task, attempt) else Outcome.FAILURE for task in range(40) for attempt in range(8)
        }
        lake.add(
            ended(f"{policy}-{task}-{attempt}", f"k{task}", made, policy, wheel_turn=1, suite="held_out", sample=attempt)
            for (task, attempt), made in outcomes.items()
        )
    assert "87.5 %" in said(lake)[0] and "37.5 points more" in said(lake)[0]
    assert "+37.5 points (p < 0.001, sign flips on 40 common tasks)" in said(lake)[1] and len(said(lake)) == 2
    (after,) = [row for row in evaluation_rows(lake) if row["policy"] == "t1-rl" and row["hops"] is None]
    assert after["change"] == pytest.approx(0.375) and after["p_value"] < 0.001
