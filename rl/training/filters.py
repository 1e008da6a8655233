"""What of a step's trajectories is trained on, and sampling that goes on until a step has enough to train on.

Nothing is lost: what a filter leaves out stands in `Collected.drops` with its reason, and the trajectories stay in the lake. All functions
but `collect_groups` are pure, and that one only calls what it is given. A trajectory that is left out takes part in no mean, no deviation
and no loss, just as an invalid one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import pstdev

from rl.training.batches import GroupKey, group_key, is_valid
from rl.training.config import FilterConfig
from warehouse.records import StopReason, Trajectory

LIMITS = frozenset(StopReason) - {StopReason.ANSWERED, StopReason.FAULT}
"""Ends that a limit brought."""


class Filter(StrEnum):
    """What leaves a trajectory out."""

    OVERLONG = "overlong"
    VOID_TURN = "void_turn"
    NO_VARIANCE = "no_variance"
    CERTAIN = "certain"
    OFF_POLICY = "off_policy"
    """Rejected by `rl.correction`: the policy that sampled it was too far from the learner."""
    STALE = "stale"
    """Too many versions old when the learner came to it."""


@dataclass(frozen=True, slots=True)
class RejectedSample:
    """One trajectory that is not trained on, and why."""

    trajectory_id: str
    task_key: str
    filter: Filter
    reason: str


@dataclass(frozen=True, slots=True)
class Collected:
    """A step's trajectories: all that were sampled, which of them are not trained on, and the environment of each task."""

    trajectories: tuple[Trajectory, ...]
    drops: tuple[RejectedSample, ...] = ()
    environments: Mapping[str, str] = field(default_factory=dict)
    resamples: int = 1
    """How many times was sampled."""
    reused: tuple[Trajectory, ...] = ()
    """What is trained on beside them and was trained on before."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Further figures, of those who collected."""
    waited: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Seconds: settling before the weights were loaded, waiting for trajectories in that time, and waiting for them while collecting."""
    useful: int = 0
    """Groups with variance, by what the filters of single trajectories leave of them; counted where groups were sampled for a step."""

    @property
    def kept(self) -> list[Trajectory]:
        """What is trained on."""
        dropped = {drop.trajectory_id for drop in self.drops}
        return [trajectory for trajectory in (*self.trajectories, *self.reused) if trajectory.id not in dropped]

    def figures(self) -> dict[str, float]:
        """How many times was sampled (`rounds`), the share of the trajectories that each filter left out, and further ones."""
        counts = Counter(drop.filter for drop in self.drops)
        shares = {f"filtered/{name}": counts[name] / max(len(self.trajectories) + len(self.reused), 1) for name in Filter}
        return {"rounds": float(self.resamples), **shares, **self.measured}


Sample = Callable[[int], Sequence[Trajectory]]
"""The groups of so many further tasks, fewer where there are no more; asked in the same way, it gives the same."""


def collect_groups(sample: Sample, wanted: int, config: FilterConfig) -> Collected:
    """Sample `wanted` groups, and further ones while some have no variance, up to `config.refills` times; then filter."""
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
    """How many groups to sample at once for `wanted` with variance: as many as lately had to be, at most `oversampling` times `wanted`.

    Args:
        recent: of each of the last steps, the groups that were sampled and those of them that had variance.
    """
    sampled, useful = sum(groups for groups, _ in recent), sum(some for _, some in recent)
    if not sampled:
        return wanted
    return math.floor(min(oversampling * wanted, math.ceil(wanted * sampled / useful) if useful else math.inf))


def filtered(trajectories: Sequence[Trajectory], config: FilterConfig) -> list[RejectedSample]:
    """What is left out: single trajectories first, then groups by what is left of them. Invalid ones are no filter's doing."""
    single = [drop for trajectory in trajectories if is_valid(trajectory) and (drop := _of_trajectory(trajectory, config)) is not None]
    gone = {drop.trajectory_id for drop in single}
    groups = _groups(trajectory for trajectory in trajectories if is_valid(trajectory) and trajectory.id not in gone)
    return [*single, *_of_groups(groups, config)]


def _of_trajectory(trajectory: Trajectory, config: FilterConfig) -> RejectedSample | None:
    if config.overlong and trajectory.stop_reason in LIMITS and trajectory.answer is None:
        return _drop(trajectory, Filter.OVERLONG, f"ended by {trajectory.stop_reason.value} without an answer")
    void = next((turn.index for turn in trajectory.turns if not turn.is_readable), None)
    if config.void_turns and void is not None:
        return _drop(trajectory, Filter.VOID_TURN, f"turn {void} holds neither a call nor an answer")
    return None


def _of_groups(groups: Mapping[GroupKey, Sequence[Trajectory]], config: FilterConfig) -> list[RejectedSample]:
    deviations = {key: _deviation(members) for key, members in groups.items()}
    certain = _certain(deviations, config.uncertain_share)
    drops = []
    for key, members in groups.items():
        if config.variance and deviations[key] == 0:
            drops += [_drop(trajectory, Filter.NO_VARIANCE, "all rewards of the group are equal") for trajectory in members]
        elif key in certain:
            reason = f"deviation {deviations[key]:.4g} is not among the largest {config.uncertain_share:.0%}"
            drops += [_drop(trajectory, Filter.CERTAIN, reason) for trajectory in members]
    return drops


def _certain(deviations: Mapping[GroupKey, float], share: float) -> set[GroupKey]:
    """The groups that are not among the `share` with the largest deviation; of equal ones the first by key are kept."""
    ranked = sorted(deviations, key=lambda key: (-deviations[key], key))
    return set(ranked[math.ceil(share * len(ranked)) :])


def _with_variance(trajectories: Sequence[Trajectory], config: FilterConfig) -> int:
    gone = {drop.trajectory_id for drop in filtered(trajectories, config.model_copy(update={"variance": False, "uncertain_share": 1.0}))}
    groups = _groups(trajectory for trajectory in trajectories if is_valid(trajectory) and trajectory.id not in gone)
    return sum(_deviation(members) > 0 for members in groups.values())


def _groups(trajectories: Iterable[Trajectory]) -> dict[GroupKey, list[Trajectory]]:
    groups: dict[GroupKey, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(group_key(trajectory), []).append(trajectory)
    return groups


def _deviation(members: Sequence[Trajectory]) -> float:
    rewards = [trajectory.reward or 0.0 for trajectory in members]
    return 0.0 if max(rewards) == min(rewards) else pstdev(rewards)


def _drop(trajectory: Trajectory, name: Filter, reason: str) -> RejectedSample:
    return RejectedSample(trajectory.id, trajectory.task_key, name, reason)
