"""Rejection sampling: the policy's own successes as the next cold start, one for a task, in the token ids that were sampled."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from warehouse.digests import digest
from warehouse.records import Example, Failure, Trajectory


def choose_successes(trajectories: Iterable[Trajectory], hops: Mapping[str, int], count: int, seed: int, wheel_turn: int) -> list[Example]:
    """At most `count` examples, for each task its shortest success (the latest of several), deeper tasks first.

    Args:
        hops: depth of each task, by key.
    """
    best: dict[str, Trajectory] = {}
    for trajectory in sorted(trajectories, key=lambda t: (len(t.turns), -(t.step or 0), t.id)):
        best.setdefault(trajectory.task_key, trajectory)
    chosen = list(best.values())
    random.Random(seed).shuffle(chosen)
    chosen.sort(key=lambda trajectory: -hops.get(trajectory.task_key, 0))
    return [example_of(trajectory, wheel_turn) for trajectory in chosen[:count]]


def without_images(trajectories: Iterable[Trajectory]) -> tuple[list[Trajectory], list[Failure]]:
    """Those of `trajectories` that show no images, and the others as failures: an example holds token ids alone."""
    kept, left_out = list[Trajectory](), list[Failure]()
    for trajectory in trajectories:
        if trajectory.images:
            left_out.append(
                Failure("synth", "rejection_of_images", "its images would be lost: an example holds token ids alone", trajectory.id)
            )
        else:
            kept.append(trajectory)
    return kept, left_out


def example_of(trajectory: Trajectory, wheel_turn: int) -> Example:
    """A trajectory as an example: prompt and observations masked, every id as it was sampled or appended."""
    ids, mask = list(trajectory.prompt_ids), [0] * len(trajectory.prompt_ids)
    segments: list[tuple[str, bool]] = []
    for turn in trajectory.turns:
        ids += [*turn.action_ids, *turn.observation_ids]
        mask += [1] * len(turn.action_ids) + [0] * len(turn.observation_ids)
        segments += [(turn.action, True), (turn.observation, False)]
    return Example(
        digest(["trajectory", trajectory.id, wheel_turn]),
        "trajectory",
        tuple(segments),
        (trajectory.id,),
        wheel_turn,
        tuple(ids),
        tuple(mask),
    )
