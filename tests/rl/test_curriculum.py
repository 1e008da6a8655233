"""The curriculum is a function of step and seed: whatever interrupts a run, it trains on the same tasks at the same horizon."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rl.curriculum import CurriculumConfig, frontier_weight, horizon, max_hops, sample_tasks
from warehouse.errors import RequestError
from warehouse.records import Task

CONFIG = CurriculumConfig(rounds=(2, 4, 6), every=10, hops=(1, 2, 3), hops_every=5)
TASKS = [Task(f"task-{number}", "search", f"Question {number}?", ("x",), hops=1 + number % 4) for number in range(60)]


@pytest.mark.parametrize(("step", "turns"), [(1, 2), (10, 2), (11, 4), (20, 4), (21, 6), (30, 6), (31, 6), (1000, 6)])
def test_horizon_grows_stage_by_stage_and_stays_at_the_last(step: int, turns: int) -> None:
    assert horizon(step, CONFIG.rounds, CONFIG.every) == turns


def test_one_round_is_a_fixed_horizon() -> None:
    assert {horizon(step, (4,), 10) for step in range(1, 100)} == {4}


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="from 1"):
        horizon(0, (2,), 10)


@settings(max_examples=50, deadline=None)
@given(
    rounds=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    every=st.integers(1, 20),
    steps=st.integers(1, 80),
    stops=st.lists(st.integers(1, 80), max_size=4),
)
def test_horizons_of_a_resumed_run_equal_those_of_an_uninterrupted_one(rounds: list[int], every: int, steps: int, stops: list[int]) -> None:
    whole = [horizon(step, rounds, every) for step in range(1, steps + 1)]
    bounds = [0, *sorted(stop for stop in stops if stop < steps), steps]
    resumed = [horizon(step, rounds, every) for start, end in pairwise(bounds) for step in range(start + 1, end + 1)]
    assert resumed == whole
    assert set(whole) <= set(rounds)
    assert len(whole) <= every or whole[every] == rounds[min(1, len(rounds) - 1)]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), stop=st.integers(1, 20), order=st.randoms(use_true_random=False))
def test_tasks_of_a_resumed_run_equal_those_of_an_uninterrupted_one(seed: int, stop: int, order: random.Random) -> None:
    whole = [sample_tasks(TASKS, step, seed, 4, CONFIG) for step in range(1, 21)]
    reloaded = order.sample(TASKS, len(TASKS))
    assert [sample_tasks(reloaded, step, seed, 4, CONFIG) for step in range(stop, 21)] == whole[stop - 1 :]


def test_a_step_draws_different_tasks_no_deeper_than_its_stage() -> None:
    for step in range(1, 21):
        chosen = sample_tasks(TASKS, step, 7, 12, CONFIG)
        assert len({task.key for task in chosen}) == 12
        assert max(task.hops for task in chosen) <= max_hops(step, CONFIG)
    assert sample_tasks(TASKS, 1, 7, 12, CONFIG) != sample_tasks(TASKS, 2, 7, 12, CONFIG) != sample_tasks(TASKS, 2, 8, 12, CONFIG)


def test_every_admitted_depth_is_as_likely_however_many_tasks_it_has() -> None:
    tasks = [Task(f"{number}", "search", "?", ("x",), hops=1 if number < 90 else 2) for number in range(100)]
    drawn = Counter(sample_tasks(tasks, step, 1, 1, CONFIG)[0].hops for step in range(6, 406))
    assert 0.4 < drawn[2] / drawn.total() < 0.6


def test_tasks_at_the_frontier_are_preferred_and_unknown_ones_are_not_shunned() -> None:
    rates = {task.key: 0.5 if number % 2 else 1.0 for number, task in enumerate(TASKS)}
    config = CurriculumConfig(hops=(4,), frontier=0.9)
    drawn = [task for step in range(1, 101) for task in sample_tasks(TASKS, step, 1, 5, config, rates)]
    assert sum(rates[task.key] == 0.5 for task in drawn) / len(drawn) > 0.8
    assert frontier_weight(None, 0.9) == frontier_weight(0.5, 0.9) == 1
    assert frontier_weight(0.0, 0.9) == frontier_weight(1.0, 0.9) == pytest.approx(0.1)


def test_a_frontier_of_one_still_draws_where_all_tasks_are_solved() -> None:
    rates = {task.key: 1.0 for task in TASKS}
    assert len(sample_tasks(TASKS, 1, 1, 5, CurriculumConfig(hops=(4,), frontier=1.0), rates)) == 5


def test_fewer_tasks_than_asked_for_are_all_drawn_and_none_is_refused() -> None:
    assert len(sample_tasks(TASKS[:3], 20, 1, 12, CONFIG)) == 3
    with pytest.raises(RequestError, match=r"step 1: curriculum.hops admits 1"):
        sample_tasks([TASKS[1]], 1, 1, 12, CONFIG)


def test_stages_may_not_be_empty() -> None:
    with pytest.raises(ValidationError):
        CurriculumConfig(rounds=())
