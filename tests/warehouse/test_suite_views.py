"""The views on suites against the same figures in Python, and against counting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from eval.graders.choice import SHORT_ANSWERS
from eval.statistics import pass_at_k, pass_hat_k
from eval.suites.figures import at_k
from flows.suites.results import read_trials
from warehouse import Lake, Outcome, Run, Task, Trajectory

pytestmark = pytest.mark.slow

VERDICTS = {"a": "SFSF", "b": "FFFF", "c": "SSIS"}
OUTCOMES = {"S": Outcome.SUCCESS, "F": Outcome.FAILURE, "I": Outcome.INVALID}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, make_trajectory: Callable[..., Trajectory]) -> Iterator[Lake]:
    with Lake(tmp_path_factory.mktemp("home")) as lake:
        lake.add([Task(key, "search", "?", ("x",), split="s") for key in "abcd"])
        lake.add([Run("eval-p-s", "eval", 1, {"suite": {"name": "s", "samples": 4}}, "d", 0, 1, "completed", datetime.now(UTC))])
        for policy, verdicts in (("p", VERDICTS), ("q", {"a": "S", "b": "S", "c": "F"}), ("r", {"a": "F", "b": "S", "c": "I"})):
            lake.add(
                make_trajectory(
                    f"{policy}-{key}-{sample}", 2 + sample % 2, task_key=key, policy=policy, stage="eval", suite="s",
                    sample=sample, outcome=OUTCOMES[verdict], reward=None,
                )
                for key, told in verdicts.items() for sample, verdict in enumerate(told)
            )  # fmt: skip
        yield lake


def test_at_k_equals_the_estimators(filled: Lake) -> None:
    rows = filled.query("SELECT k, tasks, tried, pass_at_k, pass_hat_k FROM suite_at_k WHERE policy = 'p' ORDER BY k").to_pylist()
    counts = [(sum(v != "I" for v in told), told.count("S")) for told in VERDICTS.values()]
    for row in rows[:3]:
        assert (row["tasks"], row["tried"]) == (3, 3)
        assert row["pass_at_k"] == pytest.approx(sum(pass_at_k(n, c, row["k"]) for n, c in counts) / 3)
        assert row["pass_hat_k"] == pytest.approx(sum(pass_hat_k(n, c, row["k"]) for n, c in counts) / 3)
    assert rows[3] == {"k": 4, "tasks": 2, "tried": 3, "pass_at_k": None, "pass_hat_k": None}


def test_figures_at_k_stand_where_flywheel_eval_gives_them(lake: Lake, make_trajectory: Callable[..., Trajectory]) -> None:
    """Of 50 tasks one has no judged attempt, and two have one: at most one may be missing."""
    told = {f"t{number}": "SF" for number in range(47)} | {"x": "I", "y": "SI", "z": "F"}
    lake.add(
        make_trajectory(f"{key}-{place}", task_key=key, policy="p", stage="eval", suite="s", sample=place, outcome=OUTCOMES[verdict])
        for key, verdicts in told.items()
        for place, verdict in enumerate(verdicts)
    )
    rows = lake.query("SELECT k, tasks, tried, pass_at_k, pass_hat_k FROM suite_at_k ORDER BY k").to_pylist()
    trials = read_trials(lake, "p", "s", SHORT_ANSWERS)
    for row in rows:
        for kind, given in (("pass@", row["pass_at_k"]), ("pass^", row["pass_hat_k"])):
            figure = at_k(trials, kind, row["k"])
            assert row["tasks"] == figure.tasks
            assert given == (None if figure.estimate is None else pytest.approx(figure.estimate.value))
    assert [(row["tasks"], row["tried"], row["pass_at_k"] is None) for row in rows] == [(49, 50, False), (47, 50, True)]


def test_turns_cost_and_pairs(filled: Lake) -> None:
    rows = filled.query("SELECT turns, attempts, successes FROM suite_by_turns WHERE policy = 'p' ORDER BY turns").to_pylist()
    assert rows == [{"turns": 2, "attempts": 5, "successes": 3}, {"turns": 3, "attempts": 6, "successes": 2}]
    (spent,) = filled.query("SELECT attempts, turns, action_tokens FROM suite_cost WHERE policy = 'p'").to_pylist()
    assert spent == {"attempts": 12, "turns": 2.5, "action_tokens": 7.5}
    (pair,) = filled.query("SELECT * FROM suite_pairs WHERE a = 'q' AND b = 'r'").to_pylist()
    assert {name: pair[name] for name in ("tasks", "both_solved", "only_a", "only_b", "neither")} == {
        "tasks": 2, "both_solved": 1, "only_a": 1, "only_b": 0, "neither": 0
    }  # fmt: skip
    assert pair["difference"] == -0.5


def test_replies_that_look_like_calls_and_were_not_taken(lake: Lake, make_trajectory: Callable[..., Trajectory]) -> None:
    call = '{"name": "search", "arguments": {"query": "a"}}'
    untaken = (
        f"{call}\nThis finds it.", f"First {call}", '{"tool": "browse", "parameters": {}}', "<tool_call>\n{", "<tools>\nsearch",
        "<think>hm</think>[TOOL_CALLS]search", '{"function": {"name": "search"}, "input": 1}', "<function=search>", "a</tool_call>",
        '{"name" : "search",\n"args" : {}}',
    )  # fmt: skip
    others = (
        "Green Lake", '{"title": "X", "year": 1999}', '{"name": "Amber"}', f"<think>maybe {call}</think>\nGreen Lake",
        '<tool_call>{"name": "answer", "arguments": {"text": "a"}}</tool_call>', "<answer> Green Lake</answer>",
    )  # fmt: skip

    def attempt(number: int, action: str, tool: str | None) -> Trajectory:
        made = make_trajectory(f"a{number}", 1, task_key=f"t{number}", policy="p", stage="eval", suite="s")
        return replace(made, turns=(replace(made.turns[0], action=action, tool=tool, calls=()),))

    told = [(text, tool) for text in untaken for tool in (None, "answer")] + [(text, "answer") for text in others] + [(call, "search")]
    lake.add(attempt(number, *each) for number, each in enumerate(told))
    found = lake.query("SELECT action FROM untaken_calls WHERE policy = 'p' AND suite = 's'").to_pylist()
    assert sorted(row["action"] for row in found) == sorted(2 * untaken)


def test_coverage_counts_what_is_missing(filled: Lake) -> None:
    (row,) = filled.query("SELECT * EXCLUDE (invalid_share) FROM suite_coverage WHERE policy = 'p'").to_pylist()
    assert row == {
        "policy": "p", "suite": "s", "tasks": 4, "wanted": 16, "judged": 11, "invalid": 1, "missing": 4, "is_result": False
    }  # fmt: skip
