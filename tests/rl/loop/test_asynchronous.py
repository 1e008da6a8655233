"""Rollouts without a pause: what a step learns from, and that it is the same after an interruption."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from rl.curriculum import Curriculum, CurriculumConfig
from rl.learner.config import ReinforceConfig
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.asynchronous import AsyncRolloutSource
from rl.rollouts.collect import Collected, ReinforceRun, ReplayBuffer
from tests.rl.toy import trajectory, turn
from warehouse import Batch, Record, Task, Trajectory

NOBODY = cast(Any, None)
TASKS = {f"t{number}": Task(f"t{number}", "search", "Who?", ("one",), hops=1) for number in range(30)}


class Sampled:
    """A store that has whatever is asked for: the policy solves every third task sometimes, and the others never."""

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self._made: dict[str, Trajectory] = {}

    def find(self, requests: Sequence[RolloutRequest]) -> dict[str, Trajectory]:
        found = {each.trajectory_id: self._attempt(each) for each in requests}
        self._made |= found
        return found

    def read(self, ids: Sequence[str]) -> list[Trajectory]:
        return [self._made[each] for each in ids]

    def batch(self, step: int) -> Batch | None:
        return self.batches.get(step)

    def add(self, records: Iterable[Record]) -> None:
        self.batches |= {each.step: each for each in records if isinstance(each, Batch)}

    def keep(self, records: object) -> None: ...

    def _attempt(self, request: RolloutRequest) -> Trajectory:
        solved = int(request.task.key[1:]) % 3 == 0 and request.sample == 0
        made = trajectory(request.task.key, request.sample, [turn(0, [1], [-0.1])], float(solved))
        return replace(made, id=request.trajectory_id, step=request.step, horizon=request.horizon)


class Idle:
    """Engines that have nothing to do, for the store has all of it."""

    ready = False

    def submit(self, requests: Sequence[RolloutRequest]) -> Idle:
        assert not requests
        return self

    def extend(self, stream: Idle, requests: Sequence[RolloutRequest]) -> None:
        assert not requests


def source(store: Sampled, **settings: Any) -> AsyncRolloutSource:
    config = ReinforceConfig.model_validate({"mode": "asynchronous", "steps": 12, "tasks_per_step": 4, "samples_per_task": 2, **settings})
    environments = dict.fromkeys(TASKS, "search")
    run = ReinforceRun("r", "p", 1, 0, config, NOBODY, NOBODY, environments, cast(Any, Idle()), cast(Any, store))
    curriculum = Curriculum(CurriculumConfig(hops=(1,)), list(TASKS.values()), seed=3)
    return AsyncRolloutSource(run, curriculum, ReplayBuffer(config.replay, config.tasks_per_step, 0, store.read), TASKS)


REUSING = {"filters": {"variance": True}, "replay": {"reuse": 0.5, "max_staleness": 3}}


def collected(made: AsyncRolloutSource, steps: Iterable[int]) -> list[tuple[Collected, dict[str, Any]]]:
    """What each step learns from, and what a checkpoint behind it holds."""
    return [(replace(made.collect(step), waited=(0.0, 0.0, 0.0)), made.state_dict()) for step in steps]


def test_what_the_filters_left_out_is_not_learnt_from_later_either() -> None:
    steps = [each for each, _ in collected(source(Sampled(), **REUSING), range(1, 13))]
    learnt = {trajectory.id for each in steps for trajectory in each.trajectories} - {
        drop.trajectory_id for each in steps for drop in each.drops
    }
    reused = {trajectory.id for each in steps for trajectory in each.reused}
    assert reused and reused <= learnt


def test_a_step_that_is_made_again_keeps_the_same_for_reuse() -> None:
    store = Sampled()
    whole = collected(source(store, **REUSING), range(1, 13))
    resumed = source(store, **REUSING)
    resumed.load_state_dict(whole[3][1])
    del store.batches[10], store.batches[11], store.batches[12]
    assert collected(resumed, range(5, 13)) == whole[4:]
