"""Asynchronous rollouts: groups start as capacity becomes free, and the learner takes completed groups that are not stale.

Engines receive new weights while trajectories run. A step's training data is stored before the resulting weights reach an engine, so an
interrupted step is repeated on the same trajectories; running ones are requested again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rl.curriculum import Curriculum
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.collect import Collected, ReinforceRun, RejectedSample, ReplayBuffer, filtered, groups_of
from rl.rollouts.rollout import TrajectoryStream
from warehouse import Task, Trajectory


@dataclass(slots=True)
class _GroupUnderWay:
    """A running group of one task."""

    task: Task
    step: int
    horizon: int
    requests: Sequence[RolloutRequest]
    ended: dict[str, Trajectory]

    @property
    def version(self) -> int:
        """Weight version at its start."""
        return self.step - 1

    @property
    def trajectories(self) -> list[Trajectory]:
        """Trajectories of a complete group, in request order."""
        return [self.ended[request.trajectory_id] for request in self.requests]

    @property
    def complete(self) -> bool:
        return len(self.ended) == len(self.requests)


_StepGroups = tuple[list[Trajectory], list[Trajectory], list[RejectedSample]]
"""New trajectories of a step, reused ones, and rejected stale ones."""


@dataclass(slots=True)
class AsyncRolloutSource:
    run: ReinforceRun
    curriculum: Curriculum
    buffer: ReplayBuffer
    tasks: Mapping[str, Task]
    _under_way: list[_GroupUnderWay] = field(default_factory=list)
    _stream: TrajectoryStream | None = None
    _drawn: tuple[int, int] = (0, 0)
    """Last step for which tasks were drawn, and their number."""
    _resumed: list[tuple[Task, int, int]] = field(default_factory=list)
    """Groups running at the checkpoint, restarted once the engines have its weights."""

    def collect(self, step: int) -> Collected:
        """The trajectories of `step`: those stored before an interruption, or the oldest completed groups."""
        before = self.run.waited_before()
        self._begin(self._resumed)
        self._resumed = []
        while self._stream is not None and self._stream.ready:
            self._receive(next(self._stream))
        self._store()
        fresh, reused, stale = self._recorded(step) or self._chosen(step)
        drops = filtered(fresh, self.run.config.filters)
        self.run.record_drops(step, [*stale, *drops])
        self.curriculum.observe(step, fresh)
        collected = Collected(tuple(fresh), tuple(drops), self.run.environments_of([*fresh, *reused]))
        self.buffer.keep(groups_of(collected.kept))
        metrics = {**self.curriculum.metrics(), **self.buffer.metrics(), "replay/under_way": float(len(self._under_way))}
        return replace(collected, reused=tuple(reused), measured=metrics, waited=(*before, self.run.waited.take()))

    def before_update(self) -> None:
        """Do nothing: rollouts continue with the new weights."""

    def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def state_dict(self) -> dict[str, Any]:
        under_way = [[group.task.key, group.step, group.horizon] for group in self._under_way]
        return {"replay": self.buffer.state_dict(), "under_way": under_way}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint: running groups are read from the store as far as possible, or restarted."""
        self.buffer.load_state_dict(state["replay"])
        self._resumed = [(self.tasks[key], step, horizon) for key, step, horizon in state["under_way"]]

    def _recorded(self, step: int) -> _StepGroups | None:
        """What the store has for `step`, or None."""
        batch = self.run.store.batch(step)
        if batch is None:
            return None
        trajectories, again = self.run.store.read(batch.trajectories), len(batch.reused)
        fresh, reused = trajectories[: len(trajectories) - again], trajectories[len(trajectories) - again :]
        stale = self.buffer.expire(step - 1)
        self._fill(step)
        learnt = {trajectory.id for trajectory in fresh}
        self._under_way = [group for group in self._under_way if group.requests[0].trajectory_id not in learnt]
        self.buffer.discard(learnt)
        return fresh, reused, stale

    def _chosen(self, step: int) -> _StepGroups:
        """The oldest completed groups that are not stale, stored as the step's batch."""
        stale = self.buffer.expire(step - 1)
        past = self.buffer.past(step)
        wanted = self.run.config.tasks_per_step - len(past)
        self._fill(step)
        while self._stream is not None and self._is_waited_for(step, wanted):
            with self.run.waited:
                ended = next(self._stream)
            self._receive(ended)
            if not self._is_waited_for(step, wanted):
                self._store()
                stale += self.buffer.expire(step - 1)
                self._fill(step)
        fresh, reused = ([t for group in groups for t in group.trajectories] for groups in (self.buffer.take(wanted), past))
        self.run.record_batch(step, fresh, reused)
        return fresh, reused, stale

    def _is_waited_for(self, step: int, wanted: int) -> bool:
        """Whether `step` must wait: too few groups are complete, or one would be too old for the next step."""
        replay, running = self.run.config.replay, [group for group in self._under_way if not group.complete]
        late = replay.stale == "wait" and any(step - 1 - group.version >= replay.max_staleness for group in running)
        return bool(running) and (late or len(self.buffer) + len(self._under_way) - len(running) < wanted)

    def _fill(self, step: int) -> None:
        """Start groups up to the replay capacity, but no more than the run still needs."""
        config = self.run.config
        there = len(self._under_way) + len(self.buffer)
        needed = (config.steps - step + 1) * config.tasks_per_step - there
        count = min(config.replay.groups(config.tasks_per_step) - there, needed)
        if count <= 0:
            return
        before = self._drawn[1] if self._drawn[0] == step else 0
        # With a smaller count, `draw` returns a prefix of the same sample.
        tasks, horizon = self.curriculum.draw(step, before + count), self.curriculum.horizon(step)
        self._drawn = (step, len(tasks))
        self._begin([(task, step, horizon) for task in tasks[before:]])

    def _begin(self, wanted: Sequence[tuple[Task, int, int]]) -> None:
        """Start groups of (task, step, horizon); trajectories in the store count as ended."""
        under_way = [_GroupUnderWay(*each, self.run.requests(*each), {}) for each in wanted]
        requests = [request for group in under_way for request in group.requests]
        stored = self.run.store.find(requests)
        for group in under_way:
            group.ended = {each.trajectory_id: stored[each.trajectory_id] for each in group.requests if each.trajectory_id in stored}
        self.buffer.add(groups_of([trajectory for group in under_way if group.complete for trajectory in group.trajectories]))
        self._under_way += [group for group in under_way if not group.complete]
        missing = [request for request in requests if request.trajectory_id not in stored]
        if self._stream is None:
            self._stream = self.run.rollouts.submit(missing)
        else:
            self.run.rollouts.extend(self._stream, missing)

    def _receive(self, trajectory: Trajectory) -> None:
        """Add an ended trajectory to its group, unless the step trained on the stored one."""
        for group in self._under_way:
            if any(request.trajectory_id == trajectory.id for request in group.requests):
                group.ended[trajectory.id] = trajectory

    def _store(self) -> None:
        """Reward and store complete groups in one commit; they then wait in the buffer."""
        complete = [group for group in self._under_way if group.complete]
        if complete:
            self._under_way = [group for group in self._under_way if not group.complete]
            requests = [request for group in complete for request in group.requests]
            made = self.run.reward(requests, [trajectory for group in complete for trajectory in group.trajectories])
            self.buffer.add(groups_of(made))
