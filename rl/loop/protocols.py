"""The seams of the loop: where a run keeps its trajectories, and what training asks of whoever started it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rl.engines.base import WeightProbe
from rl.engines.weight_sync import WeightSyncHandle
from rl.rollouts.base import RolloutRequest
from rl.training.base import Stateful
from rl.training.filters import Collected, Drop
from rl.training.monitor import Alert
from warehouse import Batch, Record, Trajectory


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


@dataclass(frozen=True, slots=True)
class TrainingHooks:
    """What training calls, in the process that started it, also where the learner runs on workers of its own."""

    collect: Callable[[int], Collected]
    """The trajectories of a step (from 1) with their rewards; a group is the trajectories of one task."""
    publish: Callable[[Path, int], None]
    """Loads the weights in a folder into the engines, as the version that the next step's trajectories are sampled from. Not called of
    versions that `weight_sync` has brought to all of them."""
    record_metrics: Callable[[int, dict[str, float]], bool | None] = lambda step, figures: None
    """Takes the figures of a step; where it returns True, training ends there."""
    record_alert: Callable[[Alert], None] = lambda alert: None
    """Takes each metric that goes beyond its limit, also where that is only a warning."""
    record_drops: Callable[[int, Sequence[Drop]], None] = lambda step, drops: None
    """Takes the trajectories of a step that an off-policy correction rejected."""
    engine_dtype: str = "float32"
    """What engines compute in, and what they are given weights in."""
    serves_adapters: bool = False
    """Whether engines take a version as its adapters alone, where adapters are trained."""
    in_turns: bool = False
    """Whether engines rest while the learner has its turn, and it gives back before theirs what GPU memory it only keeps for later."""
    weight_sync: WeightSyncHandle | None = None
    """Sends each version to the engines, which then need no folder of it; without it they have what `publish` gives them."""
    state: Mapping[str, Stateful] = field(default_factory=dict)
    """What stands in the checkpoints beside the trainer's own state, by name."""
    probe: Callable[[], Sequence[WeightProbe]] = tuple
    """What each engine samples with the weights that it was just given; none where there is nothing to check."""
