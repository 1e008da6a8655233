"""Every view against figures worked out by hand, invalid trajectories among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from warehouse import Lake, Metric, Outcome, Policy, Record, Score, StopReason, Task, Trajectory

MakeTrajectory = Callable[..., Trajectory]
S, F, I = Outcome.SUCCESS, Outcome.FAILURE, Outcome.INVALID  # noqa: E741


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, make_trajectory: MakeTrajectory) -> Iterator[Lake]:
    with Lake(tmp_path_factory.mktemp("home")) as lake:
        lake.add(_policies_and_tasks())
        lake.add(_evaluation(make_trajectory))
        lake.add(_steps(make_trajectory))
        lake.add([Metric("r1", "rl", 2, step, "loss", 1.0 / step) for step in (1, 2)])
        yield lake


def _policies_and_tasks() -> list[Record]:
    policies = [("p0", None, "init", 1), ("p1", "p0", "sft", 1), ("p2", "p1", "rl", 2), ("q", None, "init", 1)]
    tasks = [("e1", 1), ("e2", 1), ("e3", 2), ("e4", 2), ("t1", 1)]
    return [
        *(Policy(id, parent, stage, f"/{id}", id, 3, turn, id == "p2") for id, parent, stage, turn in policies),
        *(Task(key, "search", "?", ("a",), hops=hops) for key, hops in tasks),
    ]


def _evaluation(make: MakeTrajectory) -> list[Record]:
    """p2 on four held-out tasks: a success, a failure, a success and a fault; one stored failure is a success by its score."""
    outcomes = [("e1", S), ("e2", F), ("e3", F), ("e4", I)]
    made = [
        make(f"eval-{key}", task_key=key, policy="p2", stage="eval", suite="held_out", outcome=outcome, wheel_turn=9, horizon=8)
        for key, outcome in outcomes
    ]
    return [*made, Score("eval-e3", "qa_em", "1", 1.0, S), Score("eval-e4", "qa_em", "1", None, I, "engine died")]


def _steps(make: MakeTrajectory) -> list[Record]:
    """Step 1: a success in 2 turns, a failure in 4 and a fault in 3; step 2: one success in 1 turn."""
    return [
        make("a", 2, step=1, horizon=2, reward=1.0, outcome=S, policy="p2"),
        make("b", 4, step=1, horizon=2, reward=0.0, outcome=F, policy="p2"),
        make("c", 3, step=1, horizon=2, reward=None, outcome=I, policy="p2", stop_reason=StopReason.FAULT),
        make("d", 1, step=2, horizon=4, reward=0.5, outcome=None, policy="p2"),
        Score("d", "qa_em", "1", 1.0, S),
    ]


def _rows(lake: Lake, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lake.query(sql).to_pylist()
    return rows


def test_evaluations_count_invalid_apart(filled: Lake) -> None:
    sql = "SELECT turn, stage, policy, suite, hops, tasks, invalid, success, low, high FROM evaluations ORDER BY hops NULLS FIRST"
    everything, one, two = _rows(filled, sql)
    shared = {"turn": 2, "stage": "rl", "policy": "p2", "suite": "held_out"}
    assert {key: everything[key] for key in shared} == shared
    assert [(row["hops"], row["tasks"], row["invalid"]) for row in (everything, one, two)] == [(None, 4, 1), (1, 2, 0), (2, 2, 1)]
    assert [row["success"] for row in (everything, one, two)] == pytest.approx([2 / 3, 1 / 2, 1.0])
    assert (everything["low"], everything["high"]) == pytest.approx((0.207655, 0.938508), abs=1e-5)
    assert (one["low"], one["high"]) == pytest.approx((0.094531, 0.905469), abs=1e-5)
    assert (two["low"], two["high"]) == pytest.approx((0.206549, 1.0), abs=1e-5)


def test_an_evaluation_of_faults_alone_has_no_rate(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    lake.add([Task("t1", "search", "?", ("a",)), make_trajectory("x", stage="eval", suite="s", outcome=I)])
    rows = _rows(lake, "SELECT tasks, invalid, success, low, high FROM evaluations")
    assert rows == [{"tasks": 1, "invalid": 1, "success": None, "low": None, "high": None}] * 2


def test_the_latest_score_decides(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    lake.add([Task("t1", "search", "?", ("a",)), make_trajectory("x", outcome=F)])
    lake.add([Score("x", "qa_em", "1", 0.0, F), Score("x", "second", "1", 1.0, S)])
    assert _rows(lake, "SELECT outcome FROM outcomes") == [{"outcome": "failure"}]
    lake.add([Score("x", "qa_em", "2", 1.0, S)])
    assert _rows(lake, "SELECT outcome FROM outcomes") == [{"outcome": "success"}]
    lake.replace([Score("x", "qa_em", "1", None, I, "judge died")])
    assert _rows(lake, "SELECT outcome, reward FROM outcomes") == [{"outcome": "invalid", "reward": None}]


def test_pass_rate(filled: Lake) -> None:
    rows = _rows(filled, "SELECT environment, hops, policy, attempts, successes, invalid, rate FROM pass_rate WHERE task_key = 't1'")
    expected = {"environment": "search", "hops": 1, "policy": "p2", "attempts": 4, "successes": 2, "invalid": 1, "rate": 2 / 3}
    assert rows == [pytest.approx(expected)]
    assert _rows(filled, "SELECT rate FROM pass_rate WHERE task_key = 'e4'") == [{"rate": None}]


def test_horizon_curve(filled: Lake) -> None:
    first, second = _rows(filled, "SELECT * EXCLUDE (policy) FROM horizon_curve ORDER BY step")
    shared = {"turn": 1, "step": 1, "horizon": 2, "trajectories": 3, "invalid": 1}
    assert first == pytest.approx(shared | {"mean_turns": 3.0, "success": 0.5, "reward": 0.5, "tool_calls": 3.0})
    shared = {"turn": 1, "step": 2, "horizon": 4, "trajectories": 1, "invalid": 0}
    assert second == pytest.approx(shared | {"mean_turns": 1.0, "success": 1.0, "reward": 1.0, "tool_calls": 1.0})


def test_learning_curve(filled: Lake) -> None:
    assert _rows(filled, "FROM learning_curve ORDER BY step") == [
        {"turn": 2, "stage": "rl", "run": "r1", "step": step, "metric": "loss", "value": 1.0 / step} for step in (1, 2)
    ]


def test_tool_use(filled: Lake) -> None:
    columns = "stage, tool, outcome, calls, trajectories, mean_latency, retries, mean_reward"
    rows = _rows(filled, f"SELECT {columns} FROM tool_use ORDER BY stage, tool")
    assert [tuple(row.values()) for row in rows] == [
        ("eval", "answer", "ok", 4, 4, 0.25, 0, None),
        ("eval", "lookup", "miss", 4, 4, 0.75, 8, 0.5),
        ("eval", "search", "ok", 4, 4, 0.25, 0, None),
        ("rl", "answer", "ok", 4, 4, 0.25, 0, None),
        ("rl", "lookup", "miss", 4, 4, 0.75, 8, 0.5),
        ("rl", "search", "ok", 6, 3, 0.25, 0, None),
    ]


def test_lineage(filled: Lake) -> None:
    rows = _rows(filled, "SELECT policy, parent, stage, turn, depth, ancestors, promoted FROM lineage ORDER BY policy")
    assert [tuple(row.values()) for row in rows] == [
        ("p0", None, "init", 1, 0, ["p0"], False),
        ("p1", "p0", "sft", 1, 1, ["p1", "p0"], False),
        ("p2", "p1", "rl", 2, 2, ["p2", "p1", "p0"], True),
        ("q", None, "init", 1, 0, ["q"], False),
    ]
