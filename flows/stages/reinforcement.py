"""Reinforcement learning of a turn: the curriculum of its run, the trajectories of each step, and the learner that takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.plan import WHEEL_ROLLOUTS, policy_id
from flows.runs import StageRun
from flows.stages.policies import finish
from flows.stages.steps import Sampling, grounds_of
from flows.workshop import Workshop
from rl.learning.curriculum import Curriculum, CurriculumConfig
from rl.learning.reinforce import train_reinforce
from warehouse.digests import seed_from


def reinforce(shop: Workshop, run: StageRun, turn: int, parent: str, variant: str = "") -> dict[str, Any]:
    """Policy optimisation under the growing horizon, or under the fixed one that `variant` names; other variants have another parent."""
    config = shop.config.for_turn(turn).rl
    seed = seed_from(shop.config.seed, "rl", turn)
    tasks = shop.lake.tasks(split="train")
    curriculum = Curriculum(fix_horizon(config.horizon, variant), tasks, seed, pass_rates(shop, turn))
    policy = policy_id(turn, "rl", variant)
    sampling = Sampling(shop, run, policy, config, curriculum, grounds_of(shop.lake, config.rewards, tasks))
    start, folder = shop.folder(shop.policy(parent)), shop.home.policies / policy
    run.total_steps = config.steps
    shop.rollouts(start)

    def publish(path: Path, version: int) -> None:
        shop.publish(path)

    result = train_reinforce(start, folder, config, sampling.collect, publish, run.metric, seed, curriculum, sampling.record_breach)
    return finish(shop, run, turn, "rl", parent, result, variant)


def fix_horizon(curriculum: CurriculumConfig, variant: str) -> CurriculumConfig:
    """The curriculum with its horizon fixed at the first or the last value, or as it is where the variant is none of these."""
    fixed = {"fixed_first": curriculum.rounds[:1], "fixed_last": curriculum.rounds[-1:]}
    return curriculum.model_copy(update={"rounds": fixed.get(variant, curriculum.rounds)})


def pass_rates(shop: Workshop, turn: int) -> dict[str, float]:
    """Success of the turn before on each training task that it tried."""
    rows = shop.lake.query(
        f"""
        SELECT task_key, avg((outcome = 'success')::INT) AS rate FROM trajectories
        WHERE {WHEEL_ROLLOUTS} AND wheel_turn = ? AND outcome <> 'invalid' GROUP BY task_key
        """,
        [turn - 1],
    ).to_pylist()
    return {row["task_key"]: row["rate"] for row in rows}
