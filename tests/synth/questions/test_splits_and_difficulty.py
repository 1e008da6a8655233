"""Splits that keep entities, formulas and patterns apart; difficulty from the formula and from what policies did."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import pytest

from synth.formulas.projections import witnesses
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.decontamination import HELD_OUT, TRAIN, entities_of, pattern_of, split_tasks
from synth.questions.difficulty import PassRate, by_difficulty, pass_rates
from synth.questions.paths import Retrieve
from warehouse import Lake, Outcome, StopReason, Task, Trajectory

CHAIN = (("C@a", "friend", "V@x"), ("V@x", "home", "?"))


@pytest.fixture(scope="module")
def tasks(graph: KnowledgeGraph, retrieve: Retrieve) -> list[Task]:
    config = QuestionConfig(counts={1: 60, 2: 60, 3: 60}, intersections=0.3)
    return build_questions(graph, config, 5, retrieve)[0]


def test_no_entity_stands_on_both_sides(tasks: list[Task]) -> None:
    parts, failures = split_tasks(tasks, "entity", 0.2)
    sides = {split: {entity for task in members for entity in entities_of(task)} for split, members in parts.items()}
    assert not sides[TRAIN] & sides[HELD_OUT]
    assert parts[TRAIN] and parts[HELD_OUT]
    assert len(parts[TRAIN]) + len(parts[HELD_OUT]) + len(failures) == len(tasks)
    assert {failure.kind for failure in failures} == {"by_entity"}


def test_what_links_two_constraints_is_an_entity_of_the_task(graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task]) -> None:
    layers = QuestionConfig(counts={2: 20}, structure="layerwise", intersections=0.5)
    for task in (*tasks, *build_questions(graph, layers, 5, retrieve)[0]):
        linked = {value for values in witnesses(graph, task.formula, task.answers).values() for value in values.values()}
        assert {value for value in linked if not value.isdecimal()} <= entities_of(task)


def test_renamed_and_reordered_formulas_fall_together(tasks: list[Task]) -> None:
    copies = [
        Task(
            f"copy of {t.key}",
            "search",
            "?",
            t.answers,
            tuple((s.replace("V@", "V@q"), r, o.replace("V@", "V@q")) for s, r, o in t.formula[::-1]),
        )
        for t in tasks
    ]
    parts, failures = split_tasks([*tasks, *copies], "formula", 0.3)
    side = {task.key: split for split, members in parts.items() for task in members}
    assert not failures and set(side.values()) == {TRAIN, HELD_OUT}
    assert all(side[task.key] == side[f"copy of {task.key}"] for task in tasks)


def test_a_pattern_is_held_out_whole(tasks: list[Task]) -> None:
    parts, failures = split_tasks(tasks, "pattern", 0.3)
    patterns = {split: {pattern_of(task.formula) for task in members} for split, members in parts.items()}
    assert not failures and patterns[TRAIN] and patterns[HELD_OUT]
    assert not patterns[TRAIN] & patterns[HELD_OUT]
    assert len(patterns[TRAIN]) < len(parts[TRAIN])


@pytest.mark.slow
def test_pass_rates_leave_out_what_is_invalid_and_are_unknown_without_a_try(tmp_path: Path) -> None:
    outcomes = [Outcome.SUCCESS, Outcome.FAILURE, Outcome.FAILURE, Outcome.INVALID]
    tries = [trajectory(f"{policy}-{number}", policy, o) for policy, (number, o) in product(("p", "q"), enumerate(outcomes))]
    with Lake(tmp_path) as lake:
        lake.add([Task("t1", "search", "?", ("a",), CHAIN), *tries, trajectory("r", "r", Outcome.SUCCESS)])
        assert pass_rates(lake, "p") == {"t1": PassRate(3, 1)}
        assert pass_rates(lake)["t1"] == PassRate(7, 3)
        (task,) = lake.tasks()
        assert by_difficulty([task], pass_rates(lake, "p"))["t1"].measured.rate == pytest.approx(1 / 3)
        assert by_difficulty([task], {})[task.key].measured.rate is None


def trajectory(key: str, policy: str, outcome: Outcome) -> Trajectory:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return Trajectory(key, "t1", policy, "rl", 3, (1,), (), StopReason.ANSWERED, outcome, None, 0, moment, 1.0)
