"""How a step's trajectories are collected where rollouts and learner take turns, or rollouts run one step ahead.

    draw      tasks and horizon, by the curriculum                        rl/training/curriculum.py
    roll out  a group of trajectories for each task                       rl/rollouts/rollout.py
    grade     a verifier grades them, reward functions are summed up      rl/rewards/reward.py
    filter    what takes no part in learning                              rl/training/filters.py

A step that was interrupted takes what the store has, and samples the rest. Where rollouts run one step ahead of the learner, all of a
step's tokens are of the weights before the last update: new ones are published when the step's rollouts have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from eval.graders.choice import Verifiers
from rl.rewards.reward import RewardContext, reward_trajectories
from rl.rollouts.base import RolloutRequest
from rl.rollouts.replay import Group, ReplayBuffer
from rl.training.batches import group_key
from rl.training.config import ReinforceConfig
from rl.training.curriculum import Curriculum
from rl.training.filters import Collected, RejectedSample, collect_groups, groups_to_ask
from rl.training.speed import Stopwatch
from warehouse import Batch, Failure, Record, Task, Trajectory
from warehouse.digests import seed_from

if TYPE_CHECKING:
    from rl.rollouts.rollout import Rollouts, TrajectoryStream

STAGE = "rl"
RECENT = 8
"""Steps that say how many groups a step must sample to have enough with variance."""


class RolloutStore(Protocol):
    """Keeps what a run samples, so that a step that was interrupted is made again on the same trajectories."""

    def find(self, requests: Sequence[RolloutRequest]) -> dict[str, Trajectory]:
        """The requested trajectories that are stored already, by id."""
        ...

    def read(self, ids: Sequence[str]) -> list[Trajectory]:
        """The trajectories with `ids`, in that order. Raises KeyError where one is not stored."""
        ...

    def batch(self, step: int) -> Batch | None:
        """What `step` was given to learn from, where that has been stored."""
        ...

    def add(self, records: Iterable[Record]) -> None:
        """Begin to store records, all in one commit. Raises what storing the ones before raised."""
        ...

    def keep(self, records: Iterable[Record]) -> None:
        """Store records some seconds later, with others."""
        ...

    def settle(self) -> None:
        """Wait until what was added is stored."""
        ...


@dataclass(frozen=True, slots=True)
class ReinforceRun:
    """What all steps of one run share: what is asked for, how it is rewarded, who samples it, and where it is kept.

    `environments` holds the environment of every task that may be drawn. Ids of trajectories follow from run, step, task and sample, so
    that whoever asks again gets what the store has.
    """

    id: str
    policy: str
    iteration: int
    seed: int
    config: ReinforceConfig
    verifiers: Verifiers
    rewards: RewardContext
    environments: Mapping[str, str]
    rollouts: Rollouts
    store: RolloutStore
    waited: Stopwatch = field(default_factory=Stopwatch)
    """How long the learner has waited for trajectories that were being sampled."""
    settling: Stopwatch = field(default_factory=Stopwatch)
    """How long publishing has waited for rollouts to end and to be stored, before weights are loaded."""

    def waited_before(self) -> tuple[float, float]:
        """The seconds of `settling` and of `waited` that publishing the weights of this step took."""
        return self.settling.take(), self.waited.take()

    def requests(self, task: Task, step: int, horizon: int) -> list[RolloutRequest]:
        """The group of trajectories that `step` asks of one task."""
        return [
            RolloutRequest(
                trajectory_id=f"{self.id}-{step:05d}-{task.key}-{sample}",
                task=task,
                policy=self.policy,
                horizon=horizon,
                seed=seed_from(self.seed, self.id, step, task.key, sample),
                temperature=self.config.temperature,
                older_share=self.config.older_share,
                stage=STAGE,
                wheel_turn=self.iteration,
                step=step,
                sample=sample,
            )
            for sample in range(self.config.samples_per_task)
        ]

    def reward(self, requests: Sequence[RolloutRequest], trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories with outcomes and rewards. They, their scores and their parts are stored in one commit, as whole groups.

        The learner does not wait for the commit; the engines do, before they load what it makes of the trajectories.
        """
        rewarded = reward_trajectories([request.task for request in requests], trajectories, self.verifiers, self.rewards)
        self.store.add([*rewarded.trajectories, *rewarded.scores, *rewarded.parts, *self.rollouts.drain_retries()])
        return rewarded.trajectories

    def record_drops(self, step: int, drops: Sequence[RejectedSample]) -> None:
        """Store what is not trained on, and why."""
        self.store.keep(
            Failure(
                STAGE,
                f"filter_{drop.filter.value}",
                drop.reason,
                {"run": self.id, "step": step, "task": drop.task_key, "trajectory": drop.trajectory_id},
            )
            for drop in drops
        )

    def record_batch(self, step: int, trajectories: Sequence[Trajectory], reused: Sequence[Trajectory]) -> None:
        """Store what a step learns from."""
        again = tuple(trajectory.id for trajectory in reused)
        self.store.add([Batch(self.id, step, (*(trajectory.id for trajectory in trajectories), *again), again)])

    def environments_of(self, trajectories: Iterable[Trajectory]) -> dict[str, str]:
        """The environment of each task that the trajectories are of."""
        return {trajectory.task_key: self.environments[trajectory.task_key] for trajectory in trajectories}


@dataclass(slots=True)
class PendingRollouts:
    """Requested trajectories that are under way, but for those that the store had."""

    run: ReinforceRun
    requests: Sequence[RolloutRequest]
    _stored: dict[str, Trajectory] = field(init=False)
    _missing: list[RolloutRequest] = field(init=False)
    _stream: TrajectoryStream | None = field(init=False)

    def __post_init__(self) -> None:
        self._stored = self.run.store.find(self.requests)
        self._missing = [request for request in self.requests if request.trajectory_id not in self._stored]
        self._stream = self.run.rollouts.submit(self._missing) if self._missing else None

    def settle(self) -> None:
        """Wait for all of them, reward and store them."""
        if self._stream is None:
            return
        try:
            with self.run.waited:
                sampled = {trajectory.id: trajectory for trajectory in self._stream}
        finally:
            self.cancel()
        rewarded = self.run.reward(self._missing, [sampled[request.trajectory_id] for request in self._missing])
        self._stored |= {trajectory.id: trajectory for trajectory in rewarded}

    def trajectories(self) -> list[Trajectory]:
        """All of them with their rewards, in the order in which they were requested."""
        self.settle()
        return [self._stored[request.trajectory_id] for request in self.requests]

    def cancel(self) -> None:
        """Stop what is under way."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None


@dataclass(slots=True)
class SyncRolloutSource:
    """Samples the steps of one run, one after the other; `ahead` begins a step while the learner updates on the one before."""

    run: ReinforceRun
    curriculum: Curriculum
    buffer: ReplayBuffer
    ahead: bool
    _drawn: list[Task] = field(default_factory=list)
    _reused: list[Group] = field(default_factory=list)
    _pending: PendingRollouts | None = None
    """The first sampling of the step after this one, where it has been begun."""
    _recent: list[tuple[int, int]] = field(default_factory=list)
    """Of each of the last steps, the groups that were sampled and those that had variance."""

    def collect(self, step: int) -> Collected:
        """What `step` learns from: sampled, rewarded and filtered, and sampled again while the filters ask for more groups."""
        before = self.run.waited_before()
        if self._pending is None:
            self._begin_step(step)
        collected = collect_groups(lambda count: self._sample(step, count), self._wanted, self.run.config.filters)
        self.run.record_drops(step, collected.drops)
        self.curriculum.observe(step, collected.trajectories)
        self._recent = [*self._recent, (len(self._drawn), collected.useful)][-RECENT:]
        collected = self._with_reused(step, collected)
        if self.ahead and step < self.run.config.steps:
            self._begin_step(step + 1)
        return replace(collected, waited=(*before, self.run.waited.take()))

    def before_update(self) -> None:
        """Let what runs ahead end under the weights that it was begun with."""
        if self._pending is not None:
            self._pending.settle()

    def close(self) -> None:
        """Stop what runs ahead."""
        if self._pending is not None:
            self._pending.cancel()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must find; what runs ahead is stored by then."""
        self.before_update()
        self.run.waited.take()  # a checkpoint belongs to no step
        return {"replay": self.buffer.state_dict(), "recent": self._recent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.buffer.load_state_dict(state["replay"])
        self._recent = [(groups, useful) for groups, useful in state["recent"]]

    @property
    def _wanted(self) -> int:
        return self.run.config.tasks_per_step - len(self._reused)

    def _begin_step(self, step: int) -> None:
        self._drawn, self._reused = [], self.buffer.past(step)
        self._pending = self._begin_rollouts(step, groups_to_ask(self._wanted, self._recent, self.run.config.filters.oversampling))

    def _sample(self, step: int, count: int) -> list[Trajectory]:
        """The rewarded groups of `count` tasks that the step has not drawn yet."""
        pending, self._pending = self._pending or self._begin_rollouts(step, count), None
        return pending.trajectories()

    def _begin_rollouts(self, step: int, count: int) -> PendingRollouts:
        """Draw tasks and begin their groups."""
        without = {task.key for task in self._drawn} | {group.task_key for group in self._reused}
        tasks, horizon = self.curriculum.draw(step, count, without), self.curriculum.horizon(step)
        self._drawn += tasks
        return PendingRollouts(self.run, [request for task in tasks for request in self.run.requests(task, step, horizon)])

    def _with_reused(self, step: int, collected: Collected) -> Collected:
        """The step with the groups that it learns from once more; those it learns from now may be reused later."""
        reused = tuple(trajectory for group in self._reused for trajectory in group.trajectories)
        figures = self.curriculum.metrics()
        if self.run.config.replay.reuse:
            self.run.record_batch(step, collected.kept, reused)
            self.buffer.expire(step - 1)
            self.buffer.keep(groups_of(collected.kept))
            figures |= self.buffer.metrics()
        environments = self.run.environments_of((*collected.trajectories, *reused))
        return replace(collected, reused=reused, environments=environments, measured=figures)


def groups_of(trajectories: Sequence[Trajectory]) -> list[Group]:
    """The groups of trajectories that lie one group behind the other, each with the version of the weights that it was begun under."""
    return [Group((step or 1) - 1, tuple(members)) for (_, step), members in groupby(trajectories, key=group_key)]
