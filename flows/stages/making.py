"""Trajectories of an RL run: asked for, looked up in the lake, rolled out, judged, rewarded, and stored.

Ids follow from run, step, task and sample, so whoever asks again gets what the lake has, and only the rest is sampled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from flows.config import ReinforceSection
from flows.runs import StageRun
from flows.stages.evaluation import score
from flows.workshop import Workshop
from rl.learning.filters import Drop
from rl.learning.replay import Group
from rl.learning.signs import Breach
from rl.rewards.composing import compose
from rl.rewards.part import Grounds
from rl.rollouts.rollout import RolloutRequest
from warehouse import Batch, Failure, Task, Trajectory
from warehouse.digests import seed_from

if TYPE_CHECKING:
    from rl.rollouts.stream import TrajectoryStream

log = logging.getLogger("flywheel")

STAGE = "rl"


@dataclass(frozen=True, slots=True)
class Making:
    """What the trajectories of one RL run are made with."""

    shop: Workshop
    run: StageRun
    policy: str
    config: ReinforceSection
    grounds: Grounds
    environments: Mapping[str, str]
    """Of every task that may be drawn."""

    def group(self, task: Task, step: int, horizon: int) -> list[RolloutRequest]:
        """The trajectories of one task that `step` asks for."""
        return [self._request(task, step, sample, horizon) for sample in range(self.config.samples_per_task)]

    def stored(self, requests: Sequence[RolloutRequest]) -> dict[str, Trajectory]:
        """Those of them that the lake has, by id."""
        wanted = {request.trajectory_id for request in requests}
        steps = [request.step for request in requests if request.step is not None]
        condition = "stage = 'rl' AND step BETWEEN ? AND ? AND policy = ?"  # which files' statistics can answer
        found = self.shop.lake.trajectories(condition, [min(steps), max(steps), self.policy]) if steps else []
        return {trajectory.id: trajectory for trajectory in found if trajectory.id in wanted}

    def read(self, ids: Sequence[str]) -> list[Trajectory]:
        """The trajectories with `ids`, in that order. Raises KeyError where the lake has one of them no longer."""
        self.run.settle()
        found = self.shop.lake.trajectories("list_contains(?, id)", [list(ids)]) if ids else []
        by_id = {trajectory.id: trajectory for trajectory in found}
        return [by_id[each] for each in ids]

    def environments_of(self, trajectories: Iterable[Trajectory]) -> dict[str, str]:
        """The environment of each task that they are of."""
        return {trajectory.task_key: self.environments[trajectory.task_key] for trajectory in trajectories}

    def store(self, requests: Sequence[RolloutRequest], trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Trajectories, scores and parts of rewards go into the lake in one commit: a group is there as a whole or not at all.

        The learner need not wait for it, but the engines wait for it before they take what it makes of them.
        """
        tasks = [request.task for request in requests]
        judged, scores = score(tasks, trajectories, self.shop.config.evaluation.verifier)
        rewarded, parts = compose(list(zip(tasks, judged, strict=True)), self.grounds)
        self.run.store([*rewarded, *scores, *parts, *self.shop.running.take_losses()])
        return rewarded

    def record_drops(self, step: int, drops: Sequence[Drop]) -> None:
        """Keep what is not trained on, and why."""
        self.run.keep(self._failure(step, drop) for drop in drops)

    def record_batch(self, step: int, trajectories: Sequence[Trajectory], reused: Sequence[Trajectory]) -> None:
        """Keep what a step learns from."""
        again = tuple(trajectory.id for trajectory in reused)
        self.run.store([Batch(self.run.id, step, (*(trajectory.id for trajectory in trajectories), *again), again)])

    def record_breach(self, breach: Breach) -> None:
        """Keep that a sign of health was broken, and say so."""
        log.warning("%s  %s: %s", self.run.id, breach.limit.then, breach)
        limit = breach.limit.model_dump(mode="json", exclude_none=True)
        item = {"run": self.run.id, "step": breach.step, "since": breach.since, "value": repr(breach.value), "limit": limit}
        self.shop.lake.add([Failure(STAGE, f"sign_{breach.limit.then}", str(breach), item)])

    def _request(self, task: Task, step: int, sample: int, horizon: int) -> RolloutRequest:
        return RolloutRequest(
            trajectory_id=f"{self.run.id}-{step:05d}-{task.key}-{sample}",
            task=task,
            policy=self.policy,
            horizon=horizon,
            seed=seed_from(self.shop.config.seed, self.run.id, step, task.key, sample),
            temperature=1.0,
            older_share=self.config.older_share,
            stage=STAGE,
            wheel_turn=self.run.run.wheel_turn,
            step=step,
            suite=None,
            sample=sample,
        )

    def _failure(self, step: int, drop: Drop) -> Failure:
        item = {"run": self.run.id, "step": step, "task": drop.task_key, "trajectory": drop.trajectory_id}
        return Failure(STAGE, f"filter_{drop.filter.value}", drop.reason, item)


@dataclass(slots=True)
class Begun:
    """Trajectories that are on their way, but for those that the lake had."""

    making: Making
    requests: Sequence[RolloutRequest]
    _stored: dict[str, Trajectory] = field(init=False)
    _missing: list[RolloutRequest] = field(init=False)
    _stream: TrajectoryStream | None = field(init=False)

    def __post_init__(self) -> None:
        self._stored = self.making.stored(self.requests)
        self._missing = [request for request in self.requests if request.trajectory_id not in self._stored]
        self._stream = self.making.shop.running.submit(self._missing) if self._missing else None

    def settle(self) -> None:
        """Wait for all of them, and store them."""
        if self._stream is None:
            return
        try:
            sampled = {trajectory.id: trajectory for trajectory in self._stream}
        finally:
            self.cancel()
        made = self.making.store(self._missing, [sampled[request.trajectory_id] for request in self._missing])
        self._stored |= {trajectory.id: trajectory for trajectory in made}

    def trajectories(self) -> list[Trajectory]:
        """All of them, in the order in which they were asked for."""
        self.settle()
        return [self._stored[request.trajectory_id] for request in self.requests]

    def cancel(self) -> None:
        """Stop what is under way."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None


def groups_of(trajectories: Sequence[Trajectory]) -> list[Group]:
    """The groups that trajectories which lie task by task make, by the version of the weights that they were begun under."""
    by_task = groupby(trajectories, key=lambda trajectory: (trajectory.task_key, trajectory.step))
    return [Group((step or 1) - 1, tuple(members)) for (_, step), members in by_task]
