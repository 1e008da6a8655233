"""The replay buffer: what is taken, what becomes too old, what is reused, and what a checkpoint must bring back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rl.advantages import dr_grpo
from rl.learner.batches import rows_of
from rl.learner.config import ReplayConfig
from rl.rollouts.collect import Filter, Group, ReplayBuffer, groups_of
from tests.rl.toy import trajectory, turn
from warehouse.records import Trajectory


def group(task: str, version: int) -> Group:
    return Group(version, tuple(trajectory(task, sample, [turn(0, [5], [-1.0])], float(sample)) for sample in range(2)))


STORED = {each.id: each for number in range(40) for each in group(f"t{number:02d}", 0).trajectories}


def read(ids: Sequence[str]) -> list[Trajectory]:
    return [STORED[each] for each in ids]


def buffer(per_step: int = 2, **settings: Any) -> ReplayBuffer:
    return ReplayBuffer(ReplayConfig.model_validate(settings), per_step, 7, read)


def keys(groups: Sequence[Group]) -> list[str]:
    return [each.task_key for each in groups]


def test_what_is_too_old_is_dropped_trajectory_by_trajectory_with_its_reason() -> None:
    replay = buffer(max_staleness=1)
    replay.add([group("t01", 3), group("t02", 4)])
    assert replay.expire(4) == []
    drops = replay.expire(5)
    assert [(drop.trajectory_id, drop.task_key, drop.filter) for drop in drops] == [
        ("t01-0", "t01", Filter.STALE),
        ("t01-1", "t01", Filter.STALE),
    ]
    assert drops[0].reason == "begun under version 3 of the weights, and the learner was at 5"
    assert keys(replay.take(9)) == ["t02"]
    assert (replay.metrics()["replay/dropped"], replay.metrics()["replay/dropped"]) == (1, 0)


def test_what_was_trained_on_is_reused_by_share_until_it_is_too_old_and_is_then_no_drop() -> None:
    replay = buffer(per_step=4, reuse=0.5, max_staleness=2)
    assert replay.past(1) == []
    replay.keep([group(f"t0{number}", 0) for number in range(4)])
    chosen = replay.past(2)
    assert len(chosen) == 2 and replay.past(2) == chosen
    assert len({tuple(keys(replay.past(step))) for step in (2, 3)} | {tuple(keys(buffer().past(2)))}) > 1
    assert replay.expire(2) == [] and len(replay.past(3)) == 2
    assert replay.past(4) == [], "version 3 is too far from 0"
    assert replay.expire(3) == [] and replay.metrics()["replay/reusable"] == 0


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["add", "take", "expire"]), st.integers(0, 3)), max_size=30), st.integers(0, 30))
def test_a_buffer_from_a_checkpoint_goes_on_like_the_one_it_was_made_from(moves: list[tuple[str, int]], cut: int) -> None:
    def play(replay: ReplayBuffer, start: int, end: int) -> list[Any]:
        """What the buffer says to the moves from `start` to `end`; versions and tasks follow from the place of the move."""
        said: list[Any] = []
        for place, (move, amount) in list(enumerate(moves))[start:end]:
            if move == "add":
                replay.add([Group(place // 3, group(f"t{place:02d}", 0).trajectories)])
            elif move == "take":
                taken = replay.take(amount)
                replay.keep(taken[:1])
                said.append(taken)
            else:
                said.append(replay.expire(place // 3))
            said.append(replay.past(place // 3 + 1))
        return said

    whole, before = buffer(reuse=0.5), buffer(reuse=0.5)
    expected = play(whole, 0, len(moves))
    said = play(before, 0, cut)
    resumed = buffer(reuse=0.5)
    resumed.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert said + play(resumed, cut, len(moves)) == expected


def test_a_group_that_is_reused_is_compared_within_itself_beside_a_fresh_one_of_the_same_task() -> None:
    early, late = ([replace(each, step=step) for each in group("a", step).trajectories] for step in (1, 3))
    late = [replace(each, reward=1 + 2 * (each.reward or 0.0)) for each in late]
    rows = rows_of([*late, *early], dr_grpo, {"a": "search"})
    assert [row.advantages for row in rows] == [(-1.0,), (1.0,), (-0.5,), (0.5,)]
    assert [groups.version for groups in groups_of([*late, *early])] == [2, 0]
