"""The benchmark of joined rows: which trajectories it learns from, and what is told of its learners."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.packed import groups
from rl.learner.batches import is_valid
from tests.rl.toy import trajectory, turn
from warehouse import Lake


def test_groups_are_those_that_were_sampled_and_every_other_one_teaches(tmp_path: Path) -> None:
    sampled = [
        replace(trajectory(task, sample, [turn(0, [4, 5], [-1.0, -2.0])], None), stage="rollout")
        for task, samples in (("a", 4), ("b", 2), ("c", 3))
        for sample in range(samples)
    ]
    with Lake(tmp_path) as lake:
        lake.add(sampled)
    found = groups(tmp_path, 2, 3)
    assert [each.task_key for each in found] == ["a"] * 3 + ["c"] * 3
    assert [each.reward for each in found] == [0.0, 1.0, 0.0] * 2 and all(is_valid(each) for each in found)
    assert {each.prompt_ids + each.turns[0].action_ids for each in found} == {(2, 30, 3, 4, 5)}
    with pytest.raises(SystemExit, match="has 1 tasks with 4 trajectories"):
        groups(tmp_path, 2, 4)
