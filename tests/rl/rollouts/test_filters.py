"""What is not trained on, and sampling until there is enough to train on."""

from __future__ import annotations

from dataclasses import replace
from statistics import pstdev

import pytest

from rl.learner.config import FilterConfig
from rl.rollouts.collect import Filter, collect_groups, filtered, groups_to_ask
from tests.rl.toy import trajectory, turn
from warehouse.records import StopReason, Trajectory

TURNS = [turn(0, [5], [-1.0], tool="answer")]


def group(task: str, *rewards: float | None) -> list[Trajectory]:
    return [trajectory(task, number, TURNS, reward) for number, reward in enumerate(rewards)]


def dropped(trajectories: list[Trajectory], **config: object) -> dict[str, Filter]:
    return {drop.trajectory_id: drop.filter for drop in filtered(trajectories, FilterConfig.model_validate(config))}


def test_groups_without_variance_are_dropped() -> None:
    found = dropped([*group("a", 1, 1, None), *group("b", 1, 0)], variance=True)
    assert found == {"a-0": Filter.NO_VARIANCE, "a-1": Filter.NO_VARIANCE}


def test_the_most_uncertain_share_of_the_tasks_is_kept() -> None:
    groups = {"a": (1, 0), "b": (1, 1), "c": (0.6, 0.4), "d": (1, 0.5)}
    assert pstdev(groups["a"]) > pstdev(groups["d"]) > pstdev(groups["c"]) > 0
    step = [each for task, rewards in groups.items() for each in group(task, *rewards)]
    assert {name[0] for name in dropped(step, uncertain_share=0.5)} == {"b", "c"}
    assert {name[0] for name in dropped(step, uncertain_share=0.25)} == {"b", "c", "d"}
    assert {name[0] for name in dropped(step, uncertain_share=0.6)} == {"b"}


def test_overlong_trajectories_are_dropped() -> None:
    cut = replace(group("a", 0)[0], stop_reason=StopReason.MAX_TURNS, turns=(turn(0, [5], [-1.0]),))
    answered = replace(group("b", 0)[0], turns=(replace(TURNS[0], arguments="Green Lake"),))
    assert dropped([cut, answered], overlong=True) == {"a-0": Filter.OVERLONG}


def test_a_trajectory_with_a_void_turn_is_left_out_and_its_group_is_judged_without_it() -> None:
    void = replace(turn(0, [5], [-1.0]), calls=())
    step = [*group("a", 1, 1), replace(trajectory("a", 2, [void, *TURNS], 0.0))]
    assert dropped(step, void_turns=True) == {"a-2": Filter.VOID_TURN}
    assert set(dropped(step, void_turns=True, variance=True).values()) == {Filter.VOID_TURN, Filter.NO_VARIANCE}


class Rounds:
    """Gives a group for each task asked for, with variance only for every `useful`-th."""

    def __init__(self, useful: int, tasks: int = 100) -> None:
        self.useful, self.left, self.asked = useful, tasks, list[int]()

    def __call__(self, count: int) -> list[Trajectory]:
        self.asked.append(count)
        first = sum(self.asked[:-1])
        count = min(count, self.left)
        self.left -= count
        return [each for task in range(first, first + count) for each in group(f"t{task}", 1, 1.0 if task % self.useful else 0.0)]


def test_a_step_is_refilled_until_enough_groups_have_variance() -> None:
    rounds = Rounds(useful=2)
    collected = collect_groups(rounds, 4, FilterConfig(variance=True, refills=5))
    assert rounds.asked == [4, 2, 1]
    assert len({each.task_key for each in collected.kept}) == 4
    assert len(collected.trajectories) == 14 and len(collected.drops) == 6
    assert collected.metrics()["rounds"] == 3
    assert collected.metrics()["filtered/no_variance"] == pytest.approx(6 / 14)


def test_refilling_ends_at_its_limit_and_where_no_tasks_are_left() -> None:
    rounds = Rounds(useful=100)
    assert len(collect_groups(rounds, 4, FilterConfig(variance=True, refills=2)).trajectories) == 2 * (4 + 3 + 3)
    assert rounds.asked == [4, 3, 3]
    scarce = Rounds(useful=100, tasks=5)
    collect_groups(scarce, 4, FilterConfig(variance=True, refills=9))
    assert scarce.asked == [4, 3, 3]


def test_the_number_of_requested_groups_follows_recent_yield() -> None:
    assert [groups_to_ask(10, recent, 3.0) for recent in ([], [(10, 5)], [(10, 7)], [(10, 10)])] == [10, 20, 15, 10]
    assert groups_to_ask(10, [(10, 5), (20, 5)], 4.0) == 30
