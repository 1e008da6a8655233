"""The deepest proven questions, without those that one search gives away."""

from __future__ import annotations

from synth.questions.difficulty import deepest
from warehouse.records import Task


def proven(key: str, hops: int, easy: bool | None = False, answers: tuple[str, ...] = ("a",), layers: int = 1) -> Task:
    return Task(key, "search", f"{key}?", answers, hops=hops, layers=layers, proofs={} if easy is None else {"easy": easy})


def test_the_deepest_come_first_and_easy_unproven_and_open_ones_not_at_all() -> None:
    tasks = [
        proven("shallow", 2),
        proven("easy", 6, easy=True),
        proven("unproven", 6, easy=None),
        proven("open", 6, answers=("a", "b")),
        proven("deep", 5),
        proven("layered", 5, layers=3),
    ]
    assert [task.key for task in deepest(tasks)] == ["layered", "deep", "shallow"]
    assert [task.key for task in deepest(reversed(tasks), 2)] == ["layered", "deep"]
