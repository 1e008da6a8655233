"""Steps that ask for more groups at once where lately many had no variance: as many as that, and the same after an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from rl.curriculum import Curriculum, CurriculumConfig
from rl.learner.config import ReinforceConfig
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.collect import ReinforceRun, ReplayBuffer, SyncRolloutSource
from tests.rl.toy import trajectory, turn
from warehouse import Task, Trajectory

NOBODY = cast(Any, None)
TASKS = [Task(f"t{number}", "search", "Who?", ("one",), hops=1) for number in range(90)]


class Sampled:
    """A store that has whatever is asked for: the policy solves every third task sometimes, and the others never."""

    def find(self, requests: Sequence[RolloutRequest]) -> dict[str, Trajectory]:
        return {each.trajectory_id: self._attempt(each.task, each.sample or 0) for each in requests}

    def add(self, records: object) -> None: ...

    keep = add

    def _attempt(self, task: Task, sample: int) -> Trajectory:
        solved = int(task.key[1:]) % 3 == 0 and sample == 0
        return trajectory(task.key, sample, [turn(0, [1], [-0.1])], float(solved))


def source(**filters: float) -> SyncRolloutSource:
    config = ReinforceConfig(steps=20, tasks_per_step=6, samples_per_task=2, filters={"variance": True, **filters})  # type: ignore[arg-type]
    run = ReinforceRun(
        "r", "p", 1, 0, config, NOBODY, NOBODY, dict.fromkeys((task.key for task in TASKS), "search"), NOBODY, cast(Any, Sampled())
    )
    curriculum = Curriculum(CurriculumConfig(hops=(1,)), TASKS, seed=3)
    return SyncRolloutSource(run, curriculum, ReplayBuffer(config.replay, config.tasks_per_step, 0, lambda ids: []), ahead=True)


def groups(made: SyncRolloutSource, steps: Sequence[int]) -> list[list[str]]:
    return [list(dict.fromkeys(each.task_key for each in made.collect(step).trajectories)) for step in steps]


def test_a_step_asks_at_once_for_as_many_groups_as_bring_enough_with_variance() -> None:
    sizes = [len(keys) for keys in groups(source(oversampling=4.0), range(1, 21))]
    assert sizes[0] == 6, "nothing is known before the first"
    assert 15 <= sum(sizes[8:]) / 12 <= 21, "a third of the groups have variance"
    assert max(len(keys) for keys in groups(source(oversampling=2.0), range(1, 21))) == 12
    assert {len(keys) for keys in groups(source(), range(1, 21))} == {6}


def test_it_asks_for_the_same_after_an_interruption() -> None:
    whole = groups(source(oversampling=4.0), range(1, 13))
    first = source(oversampling=4.0)
    assert groups(first, range(1, 6)) == whole[:5]
    second = source(oversampling=4.0)
    second.load_state_dict(first.state_dict())
    assert groups(second, range(6, 13)) == whole[5:]
