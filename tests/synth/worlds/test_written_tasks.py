"""What the tasks of written worlds become: each one thing, by its key alone, and as often as the configuration says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synth.worlds.writing_config import WrittenWorldsConfig
from synth.worlds.written_tasks import goal_in_words, share_out
from warehouse.records import Task

TASKS = [
    Task(
        f"tool-world-library-{number:04x}",
        "tool_world",
        f"Do thing {number}.",
        ("yes",) if number % 4 == 0 else (),
        provenance={"world": {"domain": "public_library"}, "reference": {} if number % 4 == 0 else {"books/B1/copies": number}},
    )
    for number in range(400)
]


def config(**shares: object) -> WrittenWorldsConfig:
    return WrittenWorldsConfig.model_validate({"descriptions": ["x"], **shares})


def test_each_task_is_for_one_thing_as_often_as_is_wanted_and_the_same_again() -> None:
    shares = config(held_out=0.25, demonstrated=0.5, conversations=0.5, suite="exam")
    shared = share_out(TASKS, shares, seed=1)
    assert shared == share_out(list(reversed(list(reversed(TASKS)))), shares, seed=1) != share_out(TASKS, shares, seed=2)
    parts = [shared.trained, shared.held_out, shared.demonstrated]
    assert sorted(goal_in_words(task) for part in parts for task in part) == sorted(task.question for task in TASKS)
    assert len(shared.held_out) == pytest.approx(100, abs=30) and len(shared.demonstrated) == pytest.approx(150, abs=30)
    assert {task.split for task in shared.held_out} == {"exam"} and {task.split for task in shared.demonstrated} == {"demonstration"}
    assert {task.split for task in shared.trained} == {"train"}


def test_a_user_has_the_question_as_their_goal_and_the_policy_is_not_told_it() -> None:
    shared = share_out(TASKS, config(conversations=1.0), seed=1)
    users = {task.key.removesuffix("-user"): task for task in shared.trained if "user" in task.provenance}
    assert users.keys() == {task.key for task in TASKS if not task.answers}, "what only asks has no user: its answer is the policy's own"
    for task in (task for task in TASKS if task.key in users):
        asked = users[task.key]
        assert task.question not in asked.question and "public library" in asked.question
        assert asked.provenance == {**task.provenance, "user": {"goal": task.question}}
        assert replace(asked, key=task.key, question=task.question, provenance=task.provenance) == task
    assert len({task.question for task in users.values()}) == len(users)
