"""The curriculum is a function of step and seed: whatever interrupts a run, it trains on the same tasks at the same horizon."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.curriculum import Curriculum, CurriculumConfig, GateConfig, Pool, frontier_weight, max_hops, pool_of, sample_tasks, value_at
from tests.rl.toy import trajectory, turn
from warehouse.errors import RequestError
from warehouse.records import StopReason, Task, Trajectory

CONFIG = CurriculumConfig(rounds=(2, 4, 6), every=10, hops=(1, 2, 3), hops_every=5)
TASKS = [Task(f"task-{number}", "search", f"Question {number}?", ("x",), hops=1 + number % 4) for number in range(60)]


def test_horizon_grows_stage_by_stage_and_stays_at_the_last() -> None:
    found = [value_at(step, CONFIG.rounds, CONFIG.every) for step in (1, 10, 11, 20, 21, 30, 31, 1000)]
    assert found == [2, 2, 4, 4, 6, 6, 6, 6]


def test_a_step_draws_different_tasks_no_deeper_than_its_stage() -> None:
    for step in range(1, 21):
        chosen = sample_tasks(TASKS, step, 7, 12, CONFIG)
        assert len({task.key for task in chosen}) == 12
        assert max(task.hops for task in chosen) <= max_hops(step, CONFIG)
    assert sample_tasks(TASKS, 1, 7, 12, CONFIG) != sample_tasks(TASKS, 2, 7, 12, CONFIG) != sample_tasks(TASKS, 2, 8, 12, CONFIG)
    keys = {task.key for task in sample_tasks(TASKS, 20, 1, 6, CONFIG)}
    again = sample_tasks(TASKS, 20, 1, 6, CONFIG, without=keys)
    assert not keys & {task.key for task in again}, "additional tasks are new"
    assert again == sample_tasks(TASKS, 20, 1, 6, CONFIG, without=keys)


def test_tasks_at_the_frontier_are_preferred_and_unknown_ones_are_not_shunned() -> None:
    rates = {task.key: 0.5 if number % 2 else 1.0 for number, task in enumerate(TASKS)}
    config = CurriculumConfig(hops=(4,), frontier=0.9)
    drawn = [task for step in range(1, 101) for task in sample_tasks(TASKS, step, 1, 5, config, rates)]
    assert sum(rates[task.key] == 0.5 for task in drawn) / len(drawn) > 0.8
    assert frontier_weight(None, 0.9) == frontier_weight(0.5, 0.9) == 1
    assert frontier_weight(0.0, 0.9) == frontier_weight(1.0, 0.9) == pytest.approx(0.1)


# Admission


def test_environments_are_drawn_by_their_shares_and_from_their_step_on() -> None:
    tasks = [replace(task, environment=("search", "calculator", "game")[number % 3]) for number, task in enumerate(TASKS)]
    config = CurriculumConfig(hops=(4,), frontier=0, mixture={"search": 3, "calculator": 1}, enters={"calculator": 201})
    drawn = [sample_tasks(tasks, step, 1, 1, config)[0].environment for step in (*range(101, 201), *range(201, 501))]
    assert set(drawn[:100]) == {"search"} and set(drawn[100:]) == {"search", "calculator"}
    assert 0.17 < Counter(drawn[100:])["calculator"] / 300 < 0.33
    with pytest.raises(RequestError, match="select no environment"):
        sample_tasks(tasks, 1, 1, 1, CurriculumConfig(hops=(4,), mixture={"web": 1}))


def test_shares_of_environments_and_pools_are_kept_wherever_the_frontier_is() -> None:
    """An environment that is not solved yet keeps its share, and so does a pool."""
    tasks = [replace(task, environment=("search", "calculator")[number % 2], hops=1) for number, task in enumerate(TASKS)]
    rates = {task.key: 0.5 if task.environment == "search" else 0.0 for task in tasks}
    config = CurriculumConfig(hops=(1,), mixture={"search": 1, "calculator": 1})
    for frontier in (0.0, 1.0):
        own = config.model_copy(update={"frontier": frontier})
        drawn = Counter(sample_tasks(tasks, step, 1, 1, own, rates)[0].environment for step in range(1, 101))
        assert 35 < drawn["search"] < 65
    pooled = [replace(task, hops=1 + number % 2) for number, task in enumerate(TASKS)]
    rates = {task.key: 0.0 if number % 4 == 3 else 0.5 for number, task in enumerate(pooled)}
    halves = CurriculumConfig(hops=(2,), pools={Pool.UNSOLVED: 1, Pool.FRONTIER: 1})
    found = Counter(
        (task.hops, pool_of(rates[task.key])) for step in range(1, 201) for task in sample_tasks(pooled, step, 1, 1, halves, rates)
    )
    expected = {(1, Pool.FRONTIER): 100, (2, Pool.FRONTIER): 50, (2, Pool.UNSOLVED): 50}
    assert {key: pytest.approx(count, abs=30) for key, count in expected.items()} == dict(found)


# Evidence


def step_of(task: str, successes: int, truncated: int, invalid: int = 5, horizon: int = 2) -> list[Trajectory]:
    """Ten valid trajectories, so many of which succeeded or were cut off, and some invalid ones, which are no evidence."""
    tried = [trajectory(task, number, [turn(0, [5], [-1.0])], float(number < successes)) for number in range(10)]
    made = [replace(each, horizon=horizon) for each in tried]
    cut = [replace(each, stop_reason=StopReason.MAX_TURNS) if number >= 10 - truncated else each for number, each in enumerate(made)]
    return [*cut, *[trajectory(task, 10 + number, [], None) for number in range(invalid)]]


GATED = CurriculumConfig(rounds=(2, 4, 6), gate=GateConfig(steps=2, success=0.7, truncated=0.5), hops=(4,), measure=True)


def horizons(curriculum: Curriculum, evidence: list[tuple[int, int]], first: int = 1) -> list[int]:
    found = []
    for step, (successes, truncated) in enumerate(evidence, start=first):
        found.append(curriculum.horizon(step))
        curriculum.observe(step, step_of(f"task-{step % 7}", successes, truncated, horizon=found[-1]))
    return found


def test_the_horizon_grows_with_success_or_truncation() -> None:
    learnt = [(5, 0), (9, 0), (9, 0), (0, 0), (0, 0), (0, 0)]
    assert horizons(Curriculum(GATED, TASKS, 1), learnt) == [2, 2, 4, 4, 4, 4]
    held_back = [(0, 4), (0, 6), (0, 9), (0, 9), (0, 9), (0, 9)]
    assert horizons(Curriculum(GATED, TASKS, 1), held_back) == [2, 2, 4, 4, 6, 6]
    assert horizons(Curriculum(GATED, TASKS, 1), [(6, 4)] * 6) == [2] * 6


def test_trajectories_of_another_horizon_are_ignored() -> None:
    curriculum = Curriculum(GATED, TASKS, 1)
    for step in (1, 2):
        curriculum.observe(step, step_of("task-1", 9, 0))
    begun_before = curriculum.state_dict()
    for step in (3, 4):
        curriculum.observe(step, step_of("task-1", 10, 0))
    assert curriculum.horizon(5) == 4 and curriculum.state_dict()["window"] == begun_before["window"]
    for step in (5, 6):
        curriculum.observe(step, [*step_of("task-1", 10, 0), *step_of("task-2", 6, 0, horizon=4)])
    assert curriculum.horizon(7) == 4 and curriculum.state_dict()["window"] == [[6, 0, 10]] * 2
    assert curriculum.pass_rates["task-1"] == pytest.approx(0.9667, abs=1e-4)


schedules = st.builds(
    CurriculumConfig,
    rounds=st.lists(st.integers(1, 20), min_size=1, max_size=4).map(tuple),
    every=st.integers(1, 6),
    gate=st.none()
    | st.builds(GateConfig, steps=st.integers(1, 4), success=st.sampled_from([0.3, 0.8]), truncated=st.sampled_from([0.2, 0.9])),
    hops=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    hops_every=st.integers(1, 6),
    pools=st.sampled_from([{}, {Pool.FRONTIER: 1.0, Pool.UNKNOWN: 0.5}]),
    frontier=st.sampled_from([0.0, 0.9]),
    measure=st.booleans(),
)


def run(curriculum: Curriculum, steps: range, seed: int) -> list[tuple[int, list[str], dict[str, float]]]:
    """What each of `steps` is to sample; what comes back follows from the tasks and the step, as it would from a policy."""
    found = []
    for step in steps:
        tasks = curriculum.draw(step, 3)
        found.append((curriculum.horizon(step), [task.key for task in tasks], curriculum.metrics()))
        chance = random.Random(f"{seed}-{step}")
        counts = [(chance.randint(0, 10), chance.randint(0, 10), chance.randint(0, 2), chance.choice([2, found[-1][0]])) for _ in tasks]
        brought = [each for task, own in zip(tasks, counts, strict=True) for each in step_of(task.key, *own)]
        curriculum.observe(step, brought)
    return found


@settings(max_examples=50, deadline=None)
@given(config=schedules, seed=st.integers(0, 1000), stops=st.sets(st.integers(1, 13), max_size=4))
@pytest.mark.slow
def test_for_any_schedule_and_interruption_a_resumed_run_equals_an_uninterrupted_one(
    config: CurriculumConfig, seed: int, stops: set[int]
) -> None:
    tasks = [replace(task, hops=1) if number == 0 else task for number, task in enumerate(TASKS)]
    rates = {"task-3": 0.5, "task-4": 1.0}
    uninterrupted = Curriculum(config, tasks, seed, rates)
    whole = run(uninterrupted, range(1, 15), seed)
    resumed, state = [], json.dumps(Curriculum(config, tasks, seed, rates).state_dict())
    for start, end in pairwise([0, *sorted(stops), 14]):
        process = Curriculum(config, tasks, seed, rates)
        process.load_state_dict(json.loads(state))
        resumed += run(process, range(start + 1, end + 1), seed)
        state = json.dumps(process.state_dict())
    assert resumed == whole
    assert json.loads(state) == json.loads(json.dumps(uninterrupted.state_dict()))
