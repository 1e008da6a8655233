"""What a step asks for, receives and reuses, also after an interruption."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from rl.advantages import dr_grpo
from rl.curriculum import Curriculum, CurriculumConfig
from rl.learner.batches import rows_of
from rl.learner.config import ReinforceConfig, ReplayConfig
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.asynchronous import AsyncRolloutSource
from rl.rollouts.collect import Collected, Filter, Group, ReinforceRun, ReplayBuffer, SyncRolloutSource, groups_of
from tests.rl.toy import trajectory, turn
from warehouse import Batch, Record
from warehouse.records import Task, Trajectory

UNUSED = cast(Any, None)
TASKS = [Task(f"t{number}", "search", "Who?", ("one",), hops=1) for number in range(90)]
ENVIRONMENTS = dict.fromkeys((task.key for task in TASKS), "search")


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


def source(**filters: float) -> SyncRolloutSource:
    config = ReinforceConfig(steps=20, tasks_per_step=6, samples_per_task=2, filters={"variance": True, **filters})  # type: ignore[arg-type]
    run = ReinforceRun("r", "p", 1, 0, config, UNUSED, UNUSED, ENVIRONMENTS, UNUSED, cast(Any, Sampled()))
    curriculum = Curriculum(CurriculumConfig(hops=(1,)), TASKS, seed=3)
    return SyncRolloutSource(run, curriculum, ReplayBuffer(config.replay, config.tasks_per_step, 0, lambda ids: []), ahead=True)


def groups(made: SyncRolloutSource, steps: Sequence[int]) -> list[list[str]]:
    return [list(dict.fromkeys(each.task_key for each in made.collect(step).trajectories)) for step in steps]


def test_oversampling_follows_the_share_of_groups_with_variance() -> None:
    sizes = [len(keys) for keys in groups(source(oversampling=4.0), range(1, 21))]
    assert sizes[0] == 6, "nothing is known before the first"
    assert 15 <= sum(sizes[8:]) / 12 <= 21, "a third of the groups have variance"
    assert max(len(keys) for keys in groups(source(oversampling=2.0), range(1, 21))) == 12
    assert {len(keys) for keys in groups(source(), range(1, 21))} == {6}


def test_oversampling_is_the_same_after_an_interruption() -> None:
    whole = groups(source(oversampling=4.0), range(1, 13))
    first = source(oversampling=4.0)
    assert groups(first, range(1, 6)) == whole[:5]
    second = source(oversampling=4.0)
    second.load_state_dict(first.state_dict())
    assert groups(second, range(6, 13)) == whole[5:]


class Idle:
    """Engines that have nothing to do, for the store has all of it."""

    ready = False

    def submit(self, requests: Sequence[RolloutRequest]) -> Idle:
        assert not requests
        return self

    def extend(self, stream: Idle, requests: Sequence[RolloutRequest]) -> None:
        assert not requests


def asynchronous(store: Sampled, **settings: Any) -> AsyncRolloutSource:
    config = ReinforceConfig.model_validate({"mode": "asynchronous", "steps": 12, "tasks_per_step": 4, "samples_per_task": 2, **settings})
    run = ReinforceRun("r", "p", 1, 0, config, UNUSED, UNUSED, ENVIRONMENTS, cast(Any, Idle()), cast(Any, store))
    curriculum = Curriculum(CurriculumConfig(hops=(1,)), TASKS[:30], seed=3)
    past = ReplayBuffer(config.replay, config.tasks_per_step, 0, store.read)
    return AsyncRolloutSource(run, curriculum, past, {task.key: task for task in TASKS[:30]})


REUSING = {"filters": {"variance": True}, "replay": {"reuse": 0.5, "max_staleness": 3}}


def collected(made: AsyncRolloutSource, steps: Iterable[int]) -> list[tuple[Collected, dict[str, Any]]]:
    """What each step learns from, and what a checkpoint behind it holds."""
    return [(replace(made.collect(step), waited=(0.0, 0.0, 0.0)), made.state_dict()) for step in steps]


def test_filtered_trajectories_are_never_reused() -> None:
    steps = [each for each, _ in collected(asynchronous(Sampled(), **REUSING), range(1, 13))]
    learnt = {trajectory.id for each in steps for trajectory in each.trajectories}
    learnt -= {drop.trajectory_id for each in steps for drop in each.drops}
    reused = {trajectory.id for each in steps for trajectory in each.reused}
    assert reused and reused <= learnt


def test_a_repeated_step_keeps_the_same_trajectories_for_reuse() -> None:
    store = Sampled()
    whole = collected(asynchronous(store, **REUSING), range(1, 13))
    resumed = asynchronous(store, **REUSING)
    resumed.load_state_dict(whole[3][1])
    del store.batches[10], store.batches[11], store.batches[12]
    assert collected(resumed, range(5, 13)) == whole[4:]


def test_a_group_is_sampled_at_the_learners_temperature() -> None:
    config = ReinforceConfig(temperature=0.7, samples_per_task=3)
    run = ReinforceRun("r", "p", 1, 0, config, UNUSED, UNUSED, {}, UNUSED, UNUSED)
    requests = run.requests(Task("k", "search", "Who?", ("one",)), step=2, horizon=4)
    assert [request.temperature for request in requests] == [0.7] * 3
    assert len({request.seed for request in requests}) == len({request.trajectory_id for request in requests}) == 3


def group(task: str, version: int) -> Group:
    return Group(version, tuple(trajectory(task, sample, [turn(0, [5], [-1.0])], float(sample)) for sample in range(2)))


STORED = {each.id: each for number in range(40) for each in group(f"t{number:02d}", 0).trajectories}


def read(ids: Sequence[str]) -> list[Trajectory]:
    return [STORED[each] for each in ids]


def buffer(per_step: int = 2, **settings: Any) -> ReplayBuffer:
    return ReplayBuffer(ReplayConfig.model_validate(settings), per_step, 7, read)


def keys(groups: Sequence[Group]) -> list[str]:
    return [each.task_key for each in groups]


def test_stale_trajectories_are_dropped_with_a_reason() -> None:
    replay = buffer(max_staleness=1)
    replay.add([group("t01", 3), group("t02", 4)])
    assert replay.expire(4) == []
    drops = replay.expire(5)
    assert [(drop.trajectory_id, drop.filter) for drop in drops] == [("t01-0", Filter.STALE), ("t01-1", Filter.STALE)]
    assert "version 3" in drops[0].reason and keys(replay.take(9)) == ["t02"]
    assert (replay.metrics()["replay/dropped"], replay.metrics()["replay/dropped"]) == (1, 0)


def test_a_share_of_past_trajectories_is_reused_until_stale() -> None:
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
def test_a_restored_buffer_equals_the_original(moves: list[tuple[str, int]], cut: int) -> None:
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


def test_reused_and_fresh_groups_of_one_task_are_compared_separately() -> None:
    early, late = ([replace(each, step=step) for each in group("a", step).trajectories] for step in (1, 3))
    late = [replace(each, reward=1 + 2 * (each.reward or 0.0)) for each in late]
    rows = rows_of([*late, *early], dr_grpo, {"a": "search"})
    assert [row.advantages for row in rows] == [(-1.0,), (1.0,), (-0.5,), (0.5,)]
    assert [groups.version for groups in groups_of([*late, *early])] == [2, 0]
