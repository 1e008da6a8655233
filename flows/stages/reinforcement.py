"""Reinforcement learning of a turn: the curriculum of its run, the trajectories of each step, and the learner that takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.plan import WHEEL_ROLLOUTS, policy_id
from flows.runs import StageRun
from flows.stages.continuous import Continuous
from flows.stages.making import Making
from flows.stages.policies import finish
from flows.stages.steps import Sampling, grounds_of
from flows.workshop import Workshop
from rl.learning.curriculum import Curriculum, CurriculumConfig
from rl.learning.reinforce import train_reinforce
from rl.learning.replay import ReplayBuffer
from warehouse import Task
from warehouse.digests import seed_from
from warehouse.errors import RequestError

if TYPE_CHECKING:
    from rl.engines.transfer import Begun, HandOver, Shapes


def reinforce(shop: Workshop, run: StageRun, turn: int, parent: str, variant: str = "") -> dict[str, Any]:
    """Policy optimisation under the growing horizon, or under the fixed one that `variant` names; other variants have another parent.

    Tasks and pass rates are those of the snapshot that the run began with, also where it is resumed.
    """
    config, began = shop.config.for_turn(turn).rl, run.run.snapshot_before
    seed = seed_from(shop.config.seed, "rl", turn)
    tasks = shop.lake.tasks(split="train", at=began)
    curriculum = Curriculum(fix_horizon(config.horizon, variant), tasks, seed, pass_rates(shop, turn, began))
    policy = policy_id(turn, "rl", variant)
    grounds = grounds_of(shop.lake, config.rewards, tasks)
    making = Making(shop, run, policy, config, grounds, {task.key: task.environment for task in tasks})
    start, folder = shop.folder(shop.policy(parent)), shop.home.policies / policy
    run.total_steps = config.steps
    shop.rollouts(start)
    source = source_of(making, curriculum, tasks, seed)

    def before_update() -> None:
        source.before_update()
        run.settle()  # what a step learnt from is in the lake before its weights reach an engine

    def publish(path: Path, version: int) -> None:
        before_update()
        shop.running.load_weights(path, version)

    parts = {"curriculum": curriculum, "source": source, "lake": LakeMark(run)}
    with closing(source):
        result = train_reinforce(
            start,
            folder,
            config,
            source.collect,
            publish,
            LakeClock(run).metric,
            seed,
            parts,
            on_breach=making.record_breach,
            on_drops=making.record_drops,
            ray=shop.config.rollout.ray,
            hand_over=hand_over_of(shop, before_update),
        )
    return finish(shop, run, turn, "rl", parent, result, variant)


@dataclass(slots=True)
class LakeClock:
    """Tells with the figures of each step how long it waited for the lake: `lake_seconds`."""

    run: StageRun
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self._until = self.run.lake_seconds

    def metric(self, step: int, figures: Mapping[str, float]) -> bool:
        """As `StageRun.metric`."""
        before, self._until = self._until, self.run.lake_seconds
        return self.run.metric(step, {**figures, "lake_seconds": self._until - before})


def source_of(making: Making, curriculum: Curriculum, tasks: Sequence[Task], seed: int) -> Sampling | Continuous:
    """What gives the steps their trajectories, by `rl.mode`."""
    config = making.config
    buffer = ReplayBuffer(config.replay, config.tasks_per_step, seed, making.read)
    if config.mode == "asynchronous":
        return Continuous(making, curriculum, buffer, {task.key: task for task in tasks})
    return Sampling(making, curriculum, buffer, ahead=config.mode == "one_step_off")


def hand_over_of(shop: Workshop, before_update: Callable[[], None]) -> HandOver | None:
    """What the learner sends its weights by; None where the engines load them from their folder alone."""
    if shop.config.rollout.engine.transfer == "files":
        return None
    engines = shop.running.hand_over

    def begin(shapes: Shapes, path: Path, version: int) -> Begun:
        before_update()
        return engines.begin(shapes, path, version)

    return replace(engines, begin=begin)


@dataclass(frozen=True, slots=True)
class LakeMark:
    """The snapshot of the lake that a checkpoint belongs to; a run does not go on over a lake that lacks what it has stored."""

    run: StageRun

    def state_dict(self) -> dict[str, Any]:
        """The snapshot now, with all that the steps until here recorded: a run that goes on does not make them again."""
        self.run.flush()
        return {"snapshot": self.run.lake.snapshot()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises RequestError where the lake is an older one."""
        lake = self.run.lake
        now = lake.snapshot()
        if now < state["snapshot"]:
            raise RequestError(
                f"The checkpoint was written at snapshot {state['snapshot']} of the lake, and that in {lake.place.home} is at {now}: "
                f"bring back the lake that belongs to it, or remove the run's checkpoints to begin anew."
            )


def fix_horizon(curriculum: CurriculumConfig, variant: str) -> CurriculumConfig:
    """The curriculum with its horizon fixed at the first or the last value, or as it is where the variant is none of these."""
    fixed = {"fixed_first": curriculum.rounds[:1], "fixed_last": curriculum.rounds[-1:]}
    return curriculum.model_copy(update={"rounds": fixed.get(variant, curriculum.rounds)})


def pass_rates(shop: Workshop, turn: int, at: int | None) -> dict[str, float]:
    """Success of the turn before on each training task that it tried, as snapshot `at` has it."""
    rows = shop.lake.query(
        f"""
        SELECT task_key, avg((outcome = 'success')::INT) AS rate FROM trajectories
        WHERE {WHEEL_ROLLOUTS} AND wheel_turn = ? AND outcome <> 'invalid' GROUP BY task_key
        """,
        [turn - 1],
        at=at,
    ).to_pylist()
    return {row["task_key"]: row["rate"] for row in rows}
