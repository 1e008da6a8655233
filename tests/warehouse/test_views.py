"""Every view against figures worked out by hand, invalid trajectories among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from eval.graders.choice import SHORT_ANSWERS
from eval.statistics import wilson
from eval.suites.figures import at_k
from flows.suites.results import read_trials
from warehouse import (
    Document,
    Example,
    Fact,
    Failure,
    Lake,
    Metric,
    Outcome,
    Policy,
    Record,
    RewardPart,
    Run,
    Score,
    StopReason,
    Task,
    Trajectory,
)

pytestmark = pytest.mark.slow

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


def _rows(lake: Lake, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in lake.query(sql).to_pylist()]


def tries(make: MakeTrajectory, told: Mapping[str, str], turns: tuple[int, int] = (2, 2), **fields: Any) -> Iterator[Trajectory]:
    """Attempts at tasks, by their keys, with these verdicts: the letter of each. Every other one may have another number of turns."""
    for key, verdicts in told.items():
        for sample, verdict in enumerate(verdicts):
            name = f"{fields.get('policy', '')}{key}-{sample}"
            yield make(name, turns[sample % 2], task_key=key, sample=sample, outcome={"S": S, "F": F, "I": I}.get(verdict), **fields)


FIGURES: dict[str, list[tuple[Any, ...]]] = {
    "SELECT environment, hops, policy, attempts, successes, invalid, rate FROM pass_rate WHERE task_key IN ('t1', 'e4') ORDER BY hops": [
        ("search", 1, "p2", 4, 2, 1, pytest.approx(2 / 3)),
        ("search", 2, "p2", 1, 0, 1, None),
    ],
    "SELECT step, horizon, trajectories, invalid, mean_turns, success, reward, tool_calls FROM horizon_curve ORDER BY step": [
        (1, 2, 3, 1, 3.0, 0.5, 0.5, 3.0),
        (2, 4, 1, 0, 1.0, 1.0, 0.5, 1.0),
    ],
    "FROM learning_curve ORDER BY step": [(2, "rl", "r1", 1, "loss", 1.0), (2, "rl", "r1", 2, "loss", 0.5)],
    "SELECT tool, outcome, calls, trajectories, mean_latency, retries, mean_reward FROM tool_use WHERE stage = 'rl' ORDER BY tool": [
        ("answer", "ok", 4, 4, 0.25, 0, None),
        ("lookup", "miss", 4, 4, 0.75, 8, 0.5),
        ("search", "ok", 6, 3, 0.25, 0, None),
    ],
    "SELECT policy, parent, depth, ancestors, promoted FROM lineage ORDER BY policy": [
        ("p0", None, 0, ["p0"], False),
        ("p1", "p0", 1, ["p1", "p0"], False),
        ("p2", "p1", 2, ["p2", "p1", "p0"], True),
        ("q", None, 0, ["q"], False),
    ],
    "SELECT hops, horizon, trajectories, invalid, success FROM pass_rate_by_horizon WHERE stage = 'rl' ORDER BY horizon": [
        (1, 2, 3, 1, 0.5),
        (1, 4, 1, 0, 1.0),
    ],
    "SELECT kind, trajectories FROM invalid_by_kind WHERE stage = 'rl'": [("judged invalid", 1)],
    "SELECT part, trajectories, mean, lowest, highest FROM reward_summary WHERE stage = 'rl' ORDER BY part": [
        ("qa_em 1", 1, 1.0, 1.0, 1.0),
        ("total", 3, 0.5, 0.0, 1.0),
        ("turns", 3, 0.5, 0.5, 0.5),
    ],
    "SELECT * EXCLUDE (turn, seconds) FROM cost WHERE stage = 'rl'": [("rl", "p2", 4, 10, 10, 8, 30, 12, None)],
    "SELECT tool, calls, mean, p50, longest FROM tool_latency ORDER BY tool": [
        ("answer", 8, 0.25, 0.25, 0.25),
        ("lookup", 8, 0.75, 0.75, 0.75),
        ("search", 10, 0.25, 0.25, 0.25),
    ],
    "SELECT outcome, calls, share, retries FROM tool_failures WHERE tool = 'lookup'": [("miss", 8, 1.0, 16)],
    "SELECT turn, stage, policy, suite, hops, tasks, invalid, success FROM evaluations ORDER BY hops NULLS FIRST": [
        (2, "rl", "p2", "held_out", None, 4, 1, pytest.approx(2 / 3)),
        (2, "rl", "p2", "held_out", 1, 2, 0, 0.5),
        (2, "rl", "p2", "held_out", 2, 2, 1, 1.0),
    ],
    "SELECT round(low, 4), round(high, 4) FROM evaluations ORDER BY hops NULLS FIRST": [
        (0.2077, 0.9385),
        (0.0945, 0.9055),
        (0.2065, 1.0),
    ],
    "SELECT trajectories, invalid, successes, tokens_per_success, action_tokens_per_success, calls_per_success, seconds_per_success "
    "FROM cost_per_success('p2') WHERE stage = 'eval'": [(4, 1, 2, 20.0, 12.0, 4.0, 3.0)],
    "SELECT DISTINCT policy FROM cost_per_success(NULL)": [("p2",)],
    "FROM cost_per_success('nobody')": [],
}


@pytest.mark.parametrize("sql", FIGURES)
def test_a_view_has_the_figures_that_were_worked_out_by_hand(filled: Lake, sql: str) -> None:
    assert _rows(filled, sql) == FIGURES[sql]


def test_attempts_at_a_task_that_are_alike_are_worth_no_more_than_one(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    """Twenty tasks, eight attempts each: all alike, or as if drawn each time; and one policy that never fails."""
    keys = [f"k{number}" for number in range(20)]
    lake.add(Task(key, "search", "?", ("a",)) for key in keys)
    told = {"alike": ("S" * 8, "F" * 8), "drawn": ("SF" * 4, "FS" * 4), "always": ("S" * 8, "S" * 8)}
    for policy, verdicts in told.items():
        both = {key: verdicts[number % 2] for number, key in enumerate(keys)}
        lake.add(tries(make_trajectory, both, stage="eval", suite="s", policy=policy))
    for policy, counts, success in (("alike", (10, 20), 0.5), ("drawn", (80, 160), 0.5), ("always", (20, 20), 1.0)):
        (found,) = _rows(lake, f"SELECT success, low, high FROM evaluations WHERE hops IS NULL AND policy = '{policy}'")
        assert found == pytest.approx((success, *wilson(*counts)), abs=1e-5)


def test_a_reward_is_what_was_trained_on_and_what_is_not_judged_or_invalid_is_in_no_figure(
    lake: Lake, make_trajectory: MakeTrajectory
) -> None:
    made = [make_trajectory(f"paid-{paid}", step=1, policy="p", outcome=F, reward=paid / 10) for paid in range(4)]
    made += [make_trajectory("broken", step=1, policy="p", outcome=I, reward=None)]
    made += tries(make_trajectory, {"t1": "SF"}, policy="q")
    made += [make_trajectory(f"open-{number}", policy="q", outcome=None, reward=None) for number in (3, 4)]
    lake.add([Task("t1", "search", "?", ("a",)), *made, *(Score(f"paid-{paid}", "qa_em", "1", 0.0, F) for paid in range(4))])
    lake.add([RewardPart("broken", "style", 1.0, 0.9), RewardPart("paid-1", "style", 1.0, 0.1)])
    assert _rows(lake, "SELECT reward FROM horizon_curve WHERE policy = 'p'") == [(pytest.approx(0.15),)]
    assert _rows(lake, "SELECT reward, value FROM outcomes WHERE trajectory_id = 'paid-3'") == [(0.3, 0.0)]
    assert _rows(lake, "SELECT attempts, valid, rate FROM pass_rate WHERE policy = 'q'") == [(4, 2, 0.5)]
    assert _rows(lake, "FROM frontier") == [], "two of the four attempts have no verdict"
    assert _rows(lake, "SELECT trajectories, mean FROM reward_summary WHERE part = 'style'") == [(1, 0.1)]


def test_the_latest_score_decides(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    lake.add([Task("t1", "search", "?", ("a",)), make_trajectory("x", outcome=F)])
    lake.add([Score("x", "qa_em", "1", 0.0, F), Score("x", "second", "1", 1.0, S)])
    assert _rows(lake, "SELECT outcome FROM outcomes") == [("failure",)]
    lake.add([Score("x", "qa_em", "2", 1.0, S)])
    assert _rows(lake, "SELECT outcome FROM outcomes") == [("success",)]
    lake.replace([Score("x", "qa_em", "1", None, I, "judge died")])
    assert _rows(lake, "SELECT outcome, reward FROM outcomes") == [("invalid", None)]


def test_the_frontier_and_the_contrasts_in_it(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    """t1: two of four; t2: one of two and two faults, too few; t3: four of four."""
    told = {"t1": "SFSF", "t2": "SFII", "t3": "SSSS"}
    lake.add([*(Task(key, "search", "?", ("a",)) for key in told), *tries(make_trajectory, told, step=1)])
    assert _rows(lake, "SELECT task_key, attempts, successes, rate FROM frontier") == [("t1", 4, 2, 0.5)]
    contrasts = _rows(lake, "SELECT task_key, successes, failures, success, failure FROM contrasts ORDER BY task_key")
    assert contrasts == [("t1", 2, 2, "t1-0", "t1-1"), ("t2", 1, 1, "t2-0", "t2-1")]


def test_tokens_trained(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    """RL learns from what is valid and no filter left out: one trajectory of 2 + 6 + 2 tokens."""
    now = datetime.now(UTC)
    lake.add(Policy(f"t1-{stage}", None, stage, f"policies/t1-{stage}", "d", 1, 1) for stage in ("init", "cpt", "sft", "rl"))
    for stage, tokens, trained in (("cpt", 100, 100), ("sft", 50, 20), ("rl", None, None)):
        figures = {} if tokens is None else {"tokens": tokens, "trained_tokens": trained}
        lake.add([Run(f"t1-{stage}", stage, 1, {}, "d", 1, 2, "completed", now, now, figures)])
    made = {"kept": S, "left-out": F, "fault": I, "open": None}
    lake.add(make_trajectory(id, policy="t1-rl", step=1, outcome=outcome) for id, outcome in made.items())
    lake.add([make_trajectory("evaluated", policy="t1-rl", stage="eval"), Failure("rl", "filter_stale", "old", {"trajectory": "left-out"})])
    cpt, rl, sft = sorted(_rows(lake, "FROM tokens_trained(NULL)"))
    assert (cpt, rl, sft) == (("t1-cpt", "cpt", 1, 100, 100), ("t1-rl", "rl", 1, 10, 6), ("t1-sft", "sft", 1, 50, 20))
    assert _rows(lake, "FROM tokens_trained('t1-sft')") == [sft]


def test_ancestors_of_an_example(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    lake.add(
        [
            Example("top", "has", (), ("run", "gone")), Example("loop", "has", (), ("loop", "run")),
            Example("above", "fas_reason", (), ("top", "d1")), Document("d1", "A page", "text", "w"),
            Task("asked", "search", "Who?", ("a",)), make_trajectory("run", task_key="asked", policy="p0"),
        ]
    )  # fmt: skip
    assert _rows(lake, "FROM ancestors_of('above')") == [
        (1, "d1", "document", None, "A page"),
        (1, "top", "has", None, None),
        (2, "run", "trajectory", "p0", None),
        (2, "gone", None, None, None),
        (3, "asked", "task", None, "Who?"),
    ]
    assert _rows(lake, "SELECT id FROM ancestors_of('loop')") == [("run",), ("asked",)]
    assert _rows(lake, "FROM ancestors_of('nobody')") == []


def test_what_a_policy_was_trained_on_back_to_facts_and_forward_to_scores(filled: Lake, make_trajectory: MakeTrajectory) -> None:
    filled.add(
        [
            Fact("A", "knows", "B", ("d1",), "w"), Fact("B", "knows", "C", (), "w"),
            Fact("C", "knows", "D", (), "w"), Fact("X", "is", "Y", ("d9",), "w"),
            Task("lt", "search", "?", ("C",), hops=2, provenance={"source": "w", "path": ["A", "B", "C"]}),
            make_trajectory("parent-run", task_key="lt", policy="elsewhere", stage="import"),
            Example("ex-doc", "document", (), ("d1",), 1), Example("ex-sft", "trajectory", (), ("parent-run",), 1),
            Example("ex-2", "has", (), (), 2),
        ]
    )  # fmt: skip
    on = _rows(filled, "SELECT policy, kind, items FROM trained_on('p2') ORDER BY policy")
    assert on == [("p1", "trajectory", 1), ("p2", "rollout", 3)], "an invalid one is in no loss"
    assert _rows(filled, "SELECT subject, object FROM facts_behind('p1') ORDER BY subject") == [("A", "B"), ("B", "C")]
    assert _rows(filled, "SELECT depth, policy, suite, tasks FROM scores_after('p1')") == [(2, "p2", "held_out", 4)]


def test_a_policy_was_not_trained_on_what_came_after_it(lake: Lake) -> None:
    lake.add([Policy("t1-cpt", None, "cpt", "policies/t1-cpt", "d", 1, 1), Example("seen", "fas_plan", (), (), 1)])
    lake.add([Run("t1-cpt", "cpt", 1, {}, "d", 1, 2, "completed", datetime.now(UTC), datetime.now(UTC))])
    lake.add([Example("later", "fas_plan", (), (), 1)])
    assert _rows(lake, "SELECT item FROM training_items") == [("seen",)]


def test_what_synthesis_removed_are_samples_and_each_is_of_its_own_kind(lake: Lake) -> None:
    removed = ["not_unique", "no_demonstration", "demonstration_of_other_tries", "rejection_of_images", "cold_start_not_a_success"]
    others = ["shortfall", "unanswered", "judge_unfit", "budget_hours", "worker_died", "direct_engine_fault"]
    failures = [Failure("synth", kind, "why", number) for number, kind in enumerate([*removed, *others])]
    asked = Task("t", "search", "?", ("a",), (("C@X", "seat", "?"),))
    lake.add([asked, Example("e", "trajectory", (), ()), *failures, Failure("seeds", "shortfall", "two of five were not found")])
    sums = "SELECT kind, outcome, sum(samples)::INT AS n, sum(share) AS share FROM synthesis_outcomes GROUP BY ALL ORDER BY ALL"
    assert _rows(lake, sums) == [
        ("question", "kept", 1, 0.5),
        ("question", "removed", 1, 0.5),
        ("trajectory", "kept", 1, pytest.approx(0.2)),
        ("trajectory", "removed", 4, pytest.approx(0.8)),
    ]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory, make_trajectory: Callable[..., Trajectory]) -> Iterator[Lake]:
    with Lake(tmp_path_factory.mktemp("home")) as lake:
        lake.add([Task(key, "search", "?", ("x",), split="s") for key in "abcd"])
        lake.add([Run("eval-p-s", "eval", 1, {"suite": {"name": "s", "samples": 4}}, "d", 0, 1, "completed", datetime.now(UTC))])
        for policy, verdicts in (("p", ("SFSF", "FFFF", "SSIS")), ("q", "SSF"), ("r", "FSI")):
            told = dict(zip("abc", verdicts, strict=True))
            lake.add(tries(make_trajectory, told, (2, 3), policy=policy, stage="eval", suite="s", reward=None))
        yield lake


def test_figures_at_k_are_those_of_flywheel_eval(lake: Lake, make_trajectory: Callable[..., Trajectory]) -> None:
    """Of 50 tasks one has two judged attempts and one has three: at most one may be missing."""
    told = {f"t{number}": ("SFSF", "FFFF", "SSFS")[number % 3] for number in range(48)} | {"x": "SFI", "y": "SFSI"}
    lake.add(tries(make_trajectory, told, policy="p", stage="eval", suite="s"))
    rows = lake.query("SELECT k, tasks, tried, pass_at_k, pass_hat_k FROM suite_at_k ORDER BY k").to_pylist()
    trials = read_trials(lake, "p", "s", SHORT_ANSWERS)
    for row in rows:
        for kind, given in (("pass@", row["pass_at_k"]), ("pass^", row["pass_hat_k"])):
            figure = at_k(trials, kind, row["k"])
            assert row["tasks"] == figure.tasks
            assert given == (None if figure.estimate is None else pytest.approx(figure.estimate.value))
    assert [(row["tasks"], row["tried"]) for row in rows] == [(50, 50), (50, 50), (49, 50), (48, 50)]
    assert [row["pass_at_k"] is None for row in rows] == [False, False, False, True]


def test_turns_cost_pairs_and_what_is_missing(tried: Lake) -> None:
    by_turns = _rows(tried, "SELECT turns, attempts, successes FROM suite_by_turns WHERE policy = 'p' ORDER BY turns")
    assert by_turns == [(2, 5, 3), (3, 6, 2)]
    assert _rows(tried, "SELECT attempts, turns, action_tokens FROM suite_cost WHERE policy = 'p'") == [(12, 2.5, 7.5)]
    pairs = "SELECT tasks, both_solved, only_a, only_b, neither, difference FROM suite_pairs WHERE a = 'q' AND b = 'r'"
    assert _rows(tried, pairs) == [(2, 1, 1, 0, 0, -0.5)]
    coverage = "SELECT tasks, wanted, judged, invalid, missing, is_result FROM suite_coverage WHERE policy = 'p' AND suite = 's'"
    assert _rows(tried, coverage) == [(4, 16, 11, 1, 4, False)]


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
