"""The replay buffer: groups of trajectories between rollouts and learner, none of which is trained on when it is too old.

A group is what one task was sampled for at one time; it is taken whole, for advantages are within it. How old it is follows from the
version of the weights that it was begun under, so that no token of it is older, but for those of an older policy that were asked for. Every
token's own version stands in its turn. A group that was trained on stays for reuse until it is too old, or the buffer is full.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl.training.config import ReplayConfig
from rl.training.filters import Filter, RejectedSample
from warehouse.digests import seed_from
from warehouse.records import Trajectory

Read = Callable[[Sequence[str]], Sequence[Trajectory]]
"""Gives stored trajectories by their ids: a checkpoint holds ids alone."""


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one task that were begun under `version`."""

    version: int
    trajectories: tuple[Trajectory, ...]

    @property
    def task_key(self) -> str:
        """Their task."""
        return self.trajectories[0].task_key

    @property
    def ids(self) -> tuple[str, ...]:
        """Their ids, which also order groups of one version."""
        return tuple(trajectory.id for trajectory in self.trajectories)


class ReplayBuffer:
    """Groups that wait to be trained on, and groups that were."""

    def __init__(self, config: ReplayConfig, per_step: int, seed: int, read: Read) -> None:
        """`per_step`: groups that a step trains on."""
        self._config = config
        self._per_step = per_step
        self._seed = seed
        self._read = read
        self._waiting: list[Group] = []
        self._used: list[Group] = []
        self._dropped = 0

    def __len__(self) -> int:
        """Groups that wait."""
        return len(self._waiting)

    def add(self, groups: Sequence[Group]) -> None:
        """Take in groups that wait to be trained on."""
        self._waiting = sorted([*self._waiting, *groups], key=lambda group: (group.version, group.ids))

    def expire(self, version: int) -> list[RejectedSample]:
        """Let go of what is too old for a learner at `version`; of groups that were never trained on, each trajectory is a drop."""
        stale = [group for group in self._waiting if self._is_stale(group, version)]
        self._waiting = [group for group in self._waiting if not self._is_stale(group, version)]
        self._used = [group for group in self._used if not self._is_stale(group, version)]
        self._dropped += len(stale)
        return [_drop(group, trajectory, version) for group in stale for trajectory in group.trajectories]

    def take(self, count: int) -> list[Group]:
        """The `count` oldest groups that wait, or all where they are fewer; they wait no more."""
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def discard(self, ids: Collection[str]) -> None:
        """Let go of the waiting groups with these trajectories: a step has learnt from them already."""
        self._waiting = [group for group in self._waiting if set(ids).isdisjoint(group.ids)]

    def keep(self, groups: Sequence[Group]) -> None:
        """Keep groups that are trained on now, the newest `capacity` of them; none where nothing is reused.

        They are given as the filters leave them: what a step does not train on, no later one does.
        """
        if self._config.reuse:
            self._used = [*self._used, *groups][-self._config.groups(self._per_step) :]

    def past(self, step: int) -> list[Group]:
        """Groups that `step` trains on once more: as many as `reuse` says, or fewer where there are no more; by chance, seeded."""
        there = [group for group in self._used if not self._is_stale(group, step - 1)]
        count = min(int(self._config.reuse * self._per_step), len(there))
        return random.Random(seed_from("replay", self._seed, step)).sample(there, count)

    def metrics(self) -> dict[str, float]:
        """Groups that wait, that may be reused, and that have been dropped since the figures were last asked for."""
        figures = {"replay/waiting": len(self._waiting), "replay/reusable": len(self._used), "replay/dropped": self._dropped}
        self._dropped = 0
        return {name: float(value) for name, value in figures.items()}

    def state_dict(self) -> dict[str, Any]:
        """Versions and ids of all groups, as JSON can hold them."""
        return {name: [[group.version, *group.ids] for group in groups] for name, groups in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; the trajectories are read back. Raises KeyError where one is no longer stored."""
        found = {t.id: t for t in self._read([each for groups in state.values() for _, *ids in groups for each in ids])}
        self._waiting, self._used = (
            [Group(version, tuple(found[each] for each in ids)) for version, *ids in state[name]] for name in ("waiting", "used")
        )

    @property
    def _parts(self) -> dict[str, list[Group]]:
        return {"waiting": self._waiting, "used": self._used}

    def _is_stale(self, group: Group, version: int) -> bool:
        return version - group.version > self._config.max_staleness


def _drop(group: Group, trajectory: Trajectory, version: int) -> RejectedSample:
    reason = f"begun under version {group.version} of the weights, and the learner was at {version}"
    return RejectedSample(trajectory.id, trajectory.task_key, Filter.STALE, reason)
