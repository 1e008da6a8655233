"""What the views say of a policy's persistence at searching, against trajectories worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from warehouse import Call, Lake, Outcome, SearchCounts, Task, Trajectory, Turn
from warehouse.digests import digest
from warehouse.upkeep import keep_up
from warehouse.views.searches import UNCOUNTED, counts_of

pytestmark = pytest.mark.slow

MakeTrajectory = Callable[..., Trajectory]
Searched = tuple[str, str]
"""A query and what came of it; nothing, where nothing was found."""

RIGHT, OTHER, NOTHING = "Amber Stone: employer Blue River.", "Red Lake: seat Far Hill.", ""
RUNS: dict[str, tuple[tuple[Searched, ...], str, dict[str, int]]] = {
    "once": ((("Amber Stone", RIGHT),), "Blue River", {"searches": 1}),
    "a chain": ((("Amber Stone", RIGHT), ("Blue River", "Blue River: seat Far Hill.")), "Far Hill", {"searches": 2}),
    "read on": (
        (("Amber Stone", OTHER), ("amber  stone page 2", OTHER), ("Amber Stone page 3", RIGHT)),
        "Blue River",
        {"searches": 3, "in_vain": 2, "retried": 2, "pages": 2},
    ),
    "other words": (
        (("Amber Stone", NOTHING), ("employer of Amber Stone", RIGHT)),
        "Blue River",
        {"searches": 2, "in_vain": 1, "retried": 1, "words": 1},
    ),
    "the same again": (
        (("Amber Stone", OTHER), ("Amber Stone", OTHER)),
        "Far Hill",
        {"searches": 2, "in_vain": 2, "retried": 1, "same": 1, "checks": 1},
    ),
    "gave up": ((("Amber Stone", OTHER), ("Red Lake", OTHER)), "Nobody", {"searches": 2, "in_vain": 1}),
    "checked": ((("Amber Stone", RIGHT), ("Amber Stone page 2", OTHER)), "blue river", {
        "searches": 2, "in_vain": 1, "pages": 1, "checks": 1,
    }),
    "in a chat": (
        (('{"query": "Amber Stone"}', OTHER), ('{"query": "Amber Stone page 2"}', RIGHT)),
        "Blue River",
        {"searches": 2, "in_vain": 1, "retried": 1, "pages": 1},
    ),
    "nothing": ((), "Blue River", {}),
}  # fmt: skip


def run(make: MakeTrajectory, name: str, **fields: Any) -> Trajectory:
    searches, answer, _ = RUNS[name]
    base = make(name, 1, **fields)
    (turn,) = base.turns
    calls = [Call("search", query, "ok" if seen else "miss", seen or "Nothing was found: no hit.", 0.1) for query, seen in searches]
    turns = [_turn(turn, place, call) for place, call in enumerate([*calls, Call("answer", answer, None)])]
    return replace(base, turns=tuple(turns))


def _turn(turn: Turn, place: int, call: Call) -> Turn:
    return replace(turn, index=place, tool=call.tool, arguments=call.arguments, calls=(call,), observation=call.observation)


def test_the_habits_of_trajectories_are_counted_once_and_again_where_one_is_replaced(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    named = [replace(run(make_trajectory, name), id=name) for name in RUNS]
    lake.add([Task("t1", "search", "?", ("Blue River",)), *named])
    columns = ("searches", "in_vain", "retried", "same", "pages", "words", "checks")
    expected = [{"trajectory_id": name} | dict.fromkeys(columns, 0) | counts for name, (_, _, counts) in sorted(RUNS.items())]
    for _ in ("as they wait to be counted", "once they are counted"):
        found = lake.query(f"SELECT trajectory_id, {', '.join(columns)} FROM search_habits ORDER BY trajectory_id").to_pylist()
        assert found == expected
        keep_up(lake)
        kept = lake.snapshot()
    assert [counts.trajectory_id for counts in lake.read(SearchCounts)] == sorted(RUNS) and lake.query(UNCOUNTED).num_rows == 0
    keep_up(lake)
    assert lake.snapshot() == kept, "there was nothing left to count"
    lake.replace([replace(named[0], turns=named[2].turns)])
    lake.remove(Trajectory, [named[1].id])
    waiting = lake.query("SELECT trajectory_id, pages FROM search_habits ANTI JOIN search_counts USING (trajectory_id)").to_pylist()
    assert waiting == [{"trajectory_id": "once", "pages": 2}]
    assert lake.query("SELECT count(*) AS n FROM search_habits").to_pylist() == [{"n": len(RUNS) - 1}]


def test_what_another_client_took_out_hides_no_trajectory(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    lake.add([Task("t1", "search", "?", ("Blue River",)), replace(run(make_trajectory, "once"), id="gone")])
    keep_up(lake)
    lake.write(lambda cursor: cursor.execute("DELETE FROM trajectories"))
    lake.add([replace(run(make_trajectory, "read on"), id="new")])
    habits = "SELECT trajectory_id, pages FROM search_habits"
    assert lake.query(habits).to_pylist() == [{"trajectory_id": "new", "pages": None}], "as many counts as trajectories: unknown"
    keep_up(lake)
    assert lake.query(habits).to_pylist() == [{"trajectory_id": "new", "pages": 2}]


def test_the_persistence_of_a_policy_leaves_invalid_runs_out(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    runs = [run(make_trajectory, name, outcome=Outcome.SUCCESS) for name in ("once", "read on", "other words", "checked")]
    runs += [run(make_trajectory, "gave up", outcome=Outcome.FAILURE), run(make_trajectory, "in a chat", outcome=Outcome.INVALID)]
    runs.append(run(make_trajectory, "a chain", outcome=Outcome.SUCCESS, policy="another"))
    lake.add([Task("t1", "search", "?", ("Blue River",)), *runs])
    one, two = lake.query("SELECT * EXCLUDE (turn, stage, suite) FROM persistence ORDER BY policy").to_pylist()
    assert one["policy"] == "another" and (one["trajectories"], one["second_search"], one["retried"]) == (1, 0.0, None)
    assert (one["success_with"], one["success_without"]) == (None, 1.0)
    assert two == pytest.approx(
        {
            "policy": two["policy"], "trajectories": 5, "searches": 2.0, "second_search": 3 / 5, "read_on": 2 / 5, "other_words": 1 / 5,
            "same_again": 0.0, "checked": 1 / 5, "retried": 3 / 5, "success_with": 1.0, "success_without": 1 / 2,
        }
    )  # fmt: skip


def test_another_way_of_counting_empties_what_was_counted() -> None:
    """Where this digest changes, `MIGRATIONS` needs a step with DELETE FROM search_counts: lakes hold counts of the old way."""
    assert digest(counts_of("SELECT id, answer FROM trajectories")) == "aa8c962a35f1d8a9"
