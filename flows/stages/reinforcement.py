"""Reinforcement learning of a turn: trajectories of the step, from the engines or from the lake, and the learner that takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.plan import WHEEL_ROLLOUTS, policy_id
from flows.runs import StageRun
from flows.stages.evaluation import score
from flows.stages.policies import finish
from flows.workshop import Workshop
from rl.curriculum import CurriculumConfig, horizon, sample_tasks
from rl.reinforce import train_reinforce
from rl.rollout import RolloutRequest
from warehouse import Task, Trajectory
from warehouse.digests import seed_from


def reinforce(shop: Workshop, run: StageRun, turn: int, parent: str, variant: str = "") -> dict[str, Any]:
    """GRPO under the growing horizon, or under the fixed one that `variant` names."""
    config = shop.config.for_turn(turn).rl
    curriculum = fix_horizon(config.horizon, variant)
    start, seed = shop.folder(shop.policy(parent)), seed_from(shop.config.seed, "rl", turn)
    rates = pass_rates(shop, turn)
    tasks = shop.lake.tasks(split="train")
    policy = policy_id(turn, "rl", variant)
    folder = shop.home.policies / policy
    run.total_steps = config.steps
    shop.rollouts(start)

    def collect(step: int) -> list[Trajectory]:
        chosen = sample_tasks(tasks, step, seed, config.tasks_per_step, curriculum, rates)
        return _collect(shop, run, policy, chosen, step, horizon(step, curriculum.rounds, curriculum.every), config.samples_per_task)

    def publish(path: Path, version: int) -> None:
        shop.publish(path)

    result = train_reinforce(start, folder, config, collect, publish, run.metric, seed)
    return finish(shop, run, turn, "rl", parent, result, variant)


def _collect(shop: Workshop, run: StageRun, policy: str, tasks: Sequence[Task], step: int, rounds: int, samples: int) -> list[Trajectory]:
    """The step's trajectories: those that the lake has from an interrupted run as they are, the others sampled now and stored."""
    requests = [
        RolloutRequest(
            trajectory_id=f"{run.id}-{step:05d}-{task.key}-{sample}",
            task=task,
            policy=policy,
            horizon=rounds,
            seed=seed_from(shop.config.seed, run.id, step, task.key, sample),
            temperature=1.0,
            stage="rl",
            wheel_turn=run.run.wheel_turn,
            step=step,
            suite=None,
            sample=sample,
        )
        for task in tasks
        for sample in range(samples)
    ]
    stored = {t.id: t for t in shop.lake.trajectories("stage = 'rl' AND step = ? AND policy = ?", [step, policy])}
    missing = [request for request in requests if request.trajectory_id not in stored]
    if missing:
        rollouts = shop.running
        judged, scores = score([request.task for request in missing], rollouts.rollout(missing), shop.config.evaluation.verifier)
        shop.lake.add([*judged, *scores])
        stored |= {trajectory.id: trajectory for trajectory in judged}
    return [stored[request.trajectory_id] for request in requests]


def fix_horizon(curriculum: CurriculumConfig, variant: str) -> CurriculumConfig:
    """The curriculum with its horizon fixed at the first or the last value, or as it is where there is no variant."""
    rounds = {"": curriculum.rounds, "fixed_first": curriculum.rounds[:1], "fixed_last": curriculum.rounds[-1:]}[variant]
    return curriculum.model_copy(update={"rounds": rounds})


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
