"""Collect the trajectories of a step, in synchronous and one-step-off runs.

    draw      sample tasks and choose the horizon by the curriculum    rl/curriculum.py
    roll out  run a group of trajectories per task                     rl/rollouts/rollout.py
    grade     verify them and sum the reward functions                 rl/rewards/reward.py
    filter    exclude trajectories from training                       here
    replay    reuse earlier groups                                     here

An interrupted step uses the stored trajectories and samples the rest. In one-step-off runs, all tokens of a step are sampled with the
weights before the last update: new weights are published once the step's rollouts have ended. Asynchronous runs:
`rl/rollouts/asynchronous.py`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from statistics import pstdev
from typing import TYPE_CHECKING, Any, Protocol

from eval.graders.choice import Verifiers
from rl.curriculum import Curriculum
from rl.learner.batches import GroupKey, group_key, is_valid
from rl.learner.config import FilterConfig, ReinforceConfig, ReplayConfig
from rl.learner.metrics import Stopwatch
from rl.rewards.reward import RewardContext, reward_trajectories
from rl.rollouts.agent_loop import RolloutRequest
from warehouse import Batch, Failure, Record, Task
from warehouse.digests import seed_from
from warehouse.records import StopReason, Trajectory

if TYPE_CHECKING:
    from rl.rollouts.rollout import Rollouts, TrajectoryStream

STAGE = "rl"
LIMITS = frozenset(StopReason) - {StopReason.ANSWERED, StopReason.FAULT}
"""Stop reasons that are limits."""
RECENT = 8
"""Number of recent steps from which the number of groups to oversample is estimated."""


class Filter(StrEnum):
    """Why a trajectory is excluded from training."""

    OVERLONG = "overlong"
    VOID_TURN = "void_turn"
    NO_VARIANCE = "no_variance"
    CERTAIN = "certain"
    OFF_POLICY = "off_policy"
    """Rejected by `rl.correction`: the sampling policy differs too much from the learner."""
    STALE = "stale"
    """Too many versions old when the learner was ready for it."""


@dataclass(frozen=True, slots=True)
class RejectedSample:
    """A trajectory excluded from training, and why."""

    trajectory_id: str
    task_key: str
    filter: Filter
    reason: str

    @classmethod
    def of(cls, trajectory: Trajectory, name: Filter, reason: str) -> RejectedSample:
        return cls(trajectory.id, trajectory.task_key, name, reason)


@dataclass(frozen=True, slots=True)
class Collected:
    """Trajectories of a step: all sampled ones, those excluded from training, and the environment by task."""

    trajectories: tuple[Trajectory, ...]
    drops: tuple[RejectedSample, ...] = ()
    environments: Mapping[str, str] = field(default_factory=dict)
    resamples: int = 1
    """Number of sampling rounds."""
    reused: tuple[Trajectory, ...] = ()
    """Trajectories of earlier steps that are trained on again."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the curriculum and the replay buffer."""
    waited: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Seconds: settling before weights are loaded, waiting for trajectories during that time, waiting for them while collecting."""
    useful: int = 0
    """Number of groups with variance after the per-trajectory filters."""

    @property
    def kept(self) -> list[Trajectory]:
        """Trajectories to train on."""
        dropped = {drop.trajectory_id for drop in self.drops}
        return [trajectory for trajectory in (*self.trajectories, *self.reused) if trajectory.id not in dropped]

    def metrics(self) -> dict[str, float]:
        """Sampling rounds (`rounds`), the fraction of trajectories that each filter excluded, and `measured`."""
        counts = Counter(drop.filter for drop in self.drops)
        shares = {f"filtered/{name}": counts[name] / max(len(self.trajectories) + len(self.reused), 1) for name in Filter}
        return {"rounds": float(self.resamples), **shares, **self.measured}


# Filters


def collect_groups(sample: Callable[[int], Sequence[Trajectory]], wanted: int, config: FilterConfig) -> Collected:
    """Sample `wanted` groups, then up to `config.refills` times more groups while too few have variance; filter at the end.

    Args:
        sample: returns the groups of that many further tasks, or fewer if tasks run out.
    """
    trajectories = list(sample(wanted))
    resamples, useful = 1, _with_variance(trajectories, config)
    while resamples <= config.refills and useful < wanted:
        more = sample(wanted - useful)
        if not more:
            break
        trajectories += more
        resamples, useful = resamples + 1, _with_variance(trajectories, config)
    return Collected(tuple(trajectories), tuple(filtered(trajectories, config)), resamples=resamples, useful=useful)


def groups_to_ask(wanted: int, recent: Sequence[tuple[int, int]], oversampling: float) -> int:
    """Number of groups to sample at once to get `wanted` with variance, at most `oversampling * wanted`.

    Args:
        recent: for each of the last steps, groups sampled and groups with variance.
    """
    sampled, useful = sum(groups for groups, _ in recent), sum(some for _, some in recent)
    if not sampled:
        return wanted
    return math.floor(min(oversampling * wanted, math.ceil(wanted * sampled / useful) if useful else math.inf))


def filtered(trajectories: Sequence[Trajectory], config: FilterConfig) -> list[RejectedSample]:
    """Trajectories to exclude: single ones first, then whole groups by what remains. Invalid trajectories are not included."""
    single = [drop for trajectory in trajectories if is_valid(trajectory) and (drop := _of_trajectory(trajectory, config)) is not None]
    groups = _groups(trajectories, single)
    deviations = {key: _deviation(members) for key, members in groups.items()}
    ranked = sorted(deviations, key=lambda key: (-deviations[key], key))
    certain = set(ranked[math.ceil(config.uncertain_share * len(ranked)) :])
    drops = single
    for key, members in groups.items():
        if config.variance and deviations[key] == 0:
            drops += [RejectedSample.of(trajectory, Filter.NO_VARIANCE, "all rewards of the group are equal") for trajectory in members]
        elif key in certain:
            reason = f"deviation {deviations[key]:.4g} is not among the largest {config.uncertain_share:.0%}"
            drops += [RejectedSample.of(trajectory, Filter.CERTAIN, reason) for trajectory in members]
    return drops


def _of_trajectory(trajectory: Trajectory, config: FilterConfig) -> RejectedSample | None:
    if config.overlong and trajectory.stop_reason in LIMITS and trajectory.answer is None:
        return RejectedSample.of(trajectory, Filter.OVERLONG, f"ended by {trajectory.stop_reason.value} without an answer")
    void = next((turn.index for turn in trajectory.turns if not turn.is_readable), None)
    if config.void_turns and void is not None:
        return RejectedSample.of(trajectory, Filter.VOID_TURN, f"turn {void} has neither a call nor an answer")
    return None


def _with_variance(trajectories: Sequence[Trajectory], config: FilterConfig) -> int:
    drops = filtered(trajectories, config.model_copy(update={"variance": False, "uncertain_share": 1.0}))
    return sum(_deviation(members) > 0 for members in _groups(trajectories, drops).values())


def _groups(trajectories: Iterable[Trajectory], drops: Iterable[RejectedSample]) -> dict[GroupKey, list[Trajectory]]:
    gone = {drop.trajectory_id for drop in drops}
    groups: dict[GroupKey, list[Trajectory]] = {}
    for trajectory in trajectories:
        if is_valid(trajectory) and trajectory.id not in gone:
            groups.setdefault(group_key(trajectory), []).append(trajectory)
    return groups


def _deviation(members: Sequence[Trajectory]) -> float:
    rewards = [trajectory.reward or 0.0 for trajectory in members]
    return 0.0 if max(rewards) == min(rewards) else pstdev(rewards)


# Replay


@dataclass(frozen=True, slots=True)
class Group:
    """Trajectories of one task started with weight `version`, so that no token is older (except tokens of `rl.older_share`).

    Groups are used as a whole, since advantages are computed within them.
    """

    version: int
    trajectories: tuple[Trajectory, ...]

    @property
    def task_key(self) -> str:
        return self.trajectories[0].task_key

    @property
    def ids(self) -> tuple[str, ...]:
        """Trajectory ids; they also order groups of one version."""
        return tuple(trajectory.id for trajectory in self.trajectories)


def groups_of(trajectories: Sequence[Trajectory]) -> list[Group]:
    """Groups of trajectories that are ordered by group."""
    return [Group((step or 1) - 1, tuple(members)) for (_, step), members in groupby(trajectories, key=group_key)]


class ReplayBuffer:
    """Groups waiting to be trained on, and trained groups that may be reused; stale groups are dropped."""

    def __init__(self, config: ReplayConfig, per_step: int, seed: int, read: Callable[[Sequence[str]], Sequence[Trajectory]]) -> None:
        """`per_step`: groups trained on per step. `read` returns stored trajectories by id, since checkpoints hold only ids."""
        self._config = config
        self._per_step = per_step
        self._seed = seed
        self._read = read
        self._waiting: list[Group] = []
        self._used: list[Group] = []
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, groups: Sequence[Group]) -> None:
        self._waiting = sorted([*self._waiting, *groups], key=lambda group: (group.version, group.ids))

    def expire(self, version: int) -> list[RejectedSample]:
        """Drop groups too old for a learner at `version`; return their trajectories that were never trained on."""
        stale = [group for group in self._waiting if self._is_stale(group, version)]
        self._waiting = [group for group in self._waiting if not self._is_stale(group, version)]
        self._used = [group for group in self._used if not self._is_stale(group, version)]
        self._dropped += len(stale)
        reason = "started with version {} of the weights, and the learner was at {}"
        return [
            RejectedSample.of(trajectory, Filter.STALE, reason.format(group.version, version))
            for group in stale
            for trajectory in group.trajectories
        ]

    def take(self, count: int) -> list[Group]:
        """Remove and return the `count` oldest waiting groups, or all if there are fewer."""
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def discard(self, ids: Collection[str]) -> None:
        """Remove waiting groups with these trajectories, because a step has trained on them already."""
        self._waiting = [group for group in self._waiting if set(ids).isdisjoint(group.ids)]

    def keep(self, groups: Sequence[Group]) -> None:
        """Keep the newest groups for reuse, up to the capacity, as the filters left them; none without `reuse`."""
        if self._config.reuse:
            self._used = [*self._used, *groups][-self._config.groups(self._per_step) :]

    def past(self, step: int) -> list[Group]:
        """Groups for `step` to reuse, sampled with a seed: the fraction `reuse` of a step, or fewer if there are not enough."""
        there = [group for group in self._used if not self._is_stale(group, step - 1)]
        count = min(int(self._config.reuse * self._per_step), len(there))
        return random.Random(seed_from("replay", self._seed, step)).sample(there, count)

    def metrics(self) -> dict[str, float]:
        """Numbers of groups that wait, that may be reused, and that were dropped since the last call."""
        metrics = {"replay/waiting": len(self._waiting), "replay/reusable": len(self._used), "replay/dropped": self._dropped}
        self._dropped = 0
        return {name: float(value) for name, value in metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        """Versions and ids of all groups, JSON-serializable."""
        parts = {"waiting": self._waiting, "used": self._used}
        return {name: [[group.version, *group.ids] for group in groups] for name, groups in parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint and read its trajectories. Raises KeyError if one is no longer stored."""
        found = {t.id: t for t in self._read([each for groups in state.values() for _, *ids in groups for each in ids])}
        self._waiting, self._used = (
            [Group(version, tuple(found[each] for each in ids)) for version, *ids in state[name]] for name in ("waiting", "used")
        )

    def _is_stale(self, group: Group, version: int) -> bool:
        return version - group.version > self._config.max_staleness


# Sampling


class RolloutStore(Protocol):
    """Stores a run's samples, so that an interrupted step is repeated on the same trajectories."""

    def find(self, requests: Sequence[RolloutRequest]) -> dict[str, Trajectory]:
        """Requested trajectories that are already stored, by id."""

    def read(self, ids: Sequence[str]) -> list[Trajectory]:
        """Trajectories with `ids`, in that order. Raises KeyError if one is not stored."""

    def batch(self, step: int) -> Batch | None:
        """What `step` trained on, or None if not stored."""

    def add(self, records: Iterable[Record]) -> None:
        """Start storing records in one commit. Raises errors of earlier commits."""

    def keep(self, records: Iterable[Record]) -> None:
        """Store records some seconds later, together with others."""

    def settle(self) -> None:
        """Wait until everything added is stored."""


@dataclass(frozen=True, slots=True)
class ReinforceRun:
    """What all steps of a run share: requests, rewards, rollouts and the store.

    `environments` maps every task that may be drawn to its environment. Trajectory ids are derived from run, step, task and sample, so that
    a repeated request finds stored trajectories.
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
    """Time that the learner waited for trajectories being sampled."""
    settling: Stopwatch = field(default_factory=Stopwatch)
    """Time that publishing waited for rollouts to end and be stored, before weights are loaded."""

    def waited_before(self) -> tuple[float, float]:
        """Seconds of `settling` and `waited` while the weights of this step were published."""
        return self.settling.take(), self.waited.take()

    def requests(self, task: Task, step: int, horizon: int) -> list[RolloutRequest]:
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
        """Set outcomes and rewards; store trajectories, scores and reward parts in one commit, as whole groups.

        The learner does not wait for the commit; engines do, before they load the resulting weights.
        """
        rewarded = reward_trajectories([request.task for request in requests], trajectories, self.verifiers, self.rewards)
        self.store.add([*rewarded.trajectories, *rewarded.scores, *rewarded.parts, *self.rollouts.drain_retries()])
        return rewarded.trajectories

    def record_drops(self, step: int, drops: Sequence[RejectedSample]) -> None:
        where = {"run": self.id, "step": step}
        self.store.keep(
            Failure(STAGE, f"filter_{drop.filter.value}", drop.reason, {**where, "task": drop.task_key, "trajectory": drop.trajectory_id})
            for drop in drops
        )

    def record_batch(self, step: int, trajectories: Sequence[Trajectory], reused: Sequence[Trajectory]) -> None:
        again = tuple(trajectory.id for trajectory in reused)
        self.store.add([Batch(self.id, step, (*(trajectory.id for trajectory in trajectories), *again), again)])

    def environments_of(self, trajectories: Iterable[Trajectory]) -> dict[str, str]:
        return {trajectory.task_key: self.environments[trajectory.task_key] for trajectory in trajectories}


@dataclass(slots=True)
class PendingRollouts:
    """Requested trajectories: those in the store, and those being sampled."""

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
        """Wait for all trajectories, reward and store them."""
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
        """All trajectories with rewards, in the order of the requests."""
        self.settle()
        return [self._stored[request.trajectory_id] for request in self.requests]

    def cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None


@dataclass(slots=True)
class SyncRolloutSource:
    """Samples the steps of one run in order; with `ahead` it starts a step while the learner updates on the previous one."""

    run: ReinforceRun
    curriculum: Curriculum
    buffer: ReplayBuffer
    ahead: bool
    _drawn: list[Task] = field(default_factory=list)
    _reused: list[Group] = field(default_factory=list)
    _pending: PendingRollouts | None = None
    """First sampling round of the next step, if started."""
    _recent: list[tuple[int, int]] = field(default_factory=list)
    """For each of the last steps, groups sampled and groups with variance."""

    def collect(self, step: int) -> Collected:
        """Sample, reward and filter the trajectories of `step`, with further sampling rounds if the filters require them."""
        before = self.run.waited_before()
        if self._pending is None:
            self._begin_step(step)
        wanted = self.run.config.tasks_per_step - len(self._reused)
        collected = collect_groups(lambda count: self._sample(step, count), wanted, self.run.config.filters)
        self.run.record_drops(step, collected.drops)
        self.curriculum.observe(step, collected.trajectories)
        self._recent = [*self._recent, (len(self._drawn), collected.useful)][-RECENT:]
        collected = self._with_reused(step, collected)
        if self.ahead and step < self.run.config.steps:
            self._begin_step(step + 1)
        return replace(collected, waited=(*before, self.run.waited.take()))

    def before_update(self) -> None:
        """Let rollouts of the next step end with the weights they started with."""
        if self._pending is not None:
            self._pending.settle()

    def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()

    def state_dict(self) -> dict[str, Any]:
        """State for a resumed run; rollouts of the next step are stored first."""
        self.before_update()
        self.run.waited.take()  # checkpoints belong to no step
        return {"replay": self.buffer.state_dict(), "recent": self._recent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.buffer.load_state_dict(state["replay"])
        self._recent = [(groups, useful) for groups, useful in state["recent"]]

    def _begin_step(self, step: int) -> None:
        self._drawn, self._reused = [], self.buffer.past(step)
        wanted = self.run.config.tasks_per_step - len(self._reused)
        self._pending = self._begin_rollouts(step, groups_to_ask(wanted, self._recent, self.run.config.filters.oversampling))

    def _sample(self, step: int, count: int) -> list[Trajectory]:
        """Rewarded groups of `count` tasks that the step has not drawn yet."""
        pending, self._pending = self._pending or self._begin_rollouts(step, count), None
        return pending.trajectories()

    def _begin_rollouts(self, step: int, count: int) -> PendingRollouts:
        without = {task.key for task in self._drawn} | {group.task_key for group in self._reused}
        tasks, horizon = self.curriculum.draw(step, count, without), self.curriculum.horizon(step)
        self._drawn += tasks
        return PendingRollouts(self.run, [request for task in tasks for request in self.run.requests(task, step, horizon)])

    def _with_reused(self, step: int, collected: Collected) -> Collected:
        """Add the reused groups to the step, and keep its own groups for later reuse."""
        reused = tuple(trajectory for group in self._reused for trajectory in group.trajectories)
        metrics = self.curriculum.metrics()
        if self.run.config.replay.reuse:
            self.run.record_batch(step, collected.kept, reused)
            self.buffer.expire(step - 1)
            self.buffer.keep(groups_of(collected.kept))
            metrics |= self.buffer.metrics()
        environments = self.run.environments_of((*collected.trajectories, *reused))
        return replace(collected, reused=reused, environments=environments, measured=metrics)
