"""Tasks of the packaged tool worlds."""

from __future__ import annotations

from collections import Counter

import pytest

from eval.graders.state import REFERENCE
from rl.envs.tool_world.environment import find_world
from synth.worlds.tool_tasks import GOALS, Goal, ToolWorldConfig, generate_tasks, replay
from warehouse.errors import RequestError
from warehouse.records import Task


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(generate_tasks(120, seed=3))


def test_every_task_is_solved_by_its_own_calls_in_a_fresh_world(tasks: list[Task]) -> None:
    for task in tasks:
        named = task.provenance["world"]
        definition = find_world(named["domain"], {}).definition(named["seed"], named["size"])
        assert definition.digest == named["digest"]
        assert replay(definition, task.provenance["calls"]) == task.provenance[REFERENCE]
        assert bool(task.provenance[REFERENCE]) != bool(task.answers)


def test_tasks_are_of_all_domains_goals_and_lengths(tasks: list[Task]) -> None:
    assert Counter(task.provenance["world"]["domain"] for task in tasks) == dict.fromkeys(GOALS, 40)
    assert {task.constraints for task in tasks} == {1, 2, 3}
    assert {task.hops for task in tasks} >= set(range(1, 8))
    used = {call["tool"] for task in tasks for call in task.provenance["calls"]}
    assert used == {tool for domain in GOALS for tool in find_world(domain, {}).definition(0, 8).tools}
    assert 12 < sum(bool(task.answers) for task in tasks) < 36
    joined = [task for task in tasks if "that booking" in task.question or "that meeting" in task.question or "that item" in task.question]
    assert len(joined) > 12 and all(task.constraints > 1 for task in joined)


def test_no_two_are_the_same_and_seeds_repeat_them(tasks: list[Task]) -> None:
    assert len({task.key for task in tasks}) == len(tasks)
    assert list(generate_tasks(30, seed=3)) == tasks[:30]
    assert {task.key for task in generate_tasks(30, seed=4)}.isdisjoint(task.key for task in tasks)
    assert {task.key for task in generate_tasks(30, seed=3, split="dev")}.isdisjoint(task.key for task in tasks)


def test_what_cannot_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="casino"):
        list(generate_tasks(1, 0, ToolWorldConfig(domains=("casino",))))
    monkeypatch.setitem(GOALS, "bookings", (Goal("never", "?", "SELECT 1 FROM flights WHERE 0", ()),))
    with pytest.raises(RequestError, match="bookings"):
        list(generate_tasks(1, 0, ToolWorldConfig(domains=("bookings",), asked_share=0.0, max_goals=1)))
