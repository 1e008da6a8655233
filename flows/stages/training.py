"""The three training stages: each takes the policy before it and examples or trajectories from the lake, and leaves a policy."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.runs import StageRun
from flows.stages.evaluation import score
from flows.workshop import Workshop
from rl.cpt import train_cpt
from rl.curriculum import CurriculumConfig, horizon, sample_tasks
from rl.policy import create_policy
from rl.reinforce import train_reinforce
from rl.rollout import RolloutRequest
from rl.sft import train_sft
from rl.training import TrainResult
from synth.worlds.world import world_words
from warehouse import Example, Policy, Task, Trajectory
from warehouse.digests import digest_files, seed_from

WHEEL_ROLLOUTS = "stage = 'rl' AND policy = format('t{}-rl', wheel_turn)"
"""Condition on trajectories: sampled in training by the wheel itself, not for a horizon that was only compared."""

CPT_KINDS = ("document", "fas_plan", "fas_reason", "has")


def policy_id(turn: int, stage: str, variant: str = "") -> str:
    """The id of the policy that a stage makes, also the name of its folder."""
    return f"t{turn}-{stage}" + (f"-{variant}" if variant else "")


def initialise(shop: Workshop, run: StageRun) -> dict[str, Any]:
    """Make the first policy, its tokenizer trained on the training corpus where it is from scratch."""
    policy = policy_id(0, "init")
    folder = shop.home.policies / policy
    examples = shop.lake.examples()
    texts = [example.text for example in examples[:: max(1, len(examples) // 20_000)]]
    create_policy(
        shop.config.policy,
        texts,
        world_words() if shop.config.corpus.kind == "generated" else (),
        folder,
        seed_from(shop.config.seed, "policy"),
    )
    _register(shop, policy, None, "init", folder, 0)
    return {"policy": policy}


def pretrain(shop: Workshop, run: StageRun, turn: int, parent: str) -> dict[str, Any]:
    """Agentic continual pre-training on documents, plans, reasoning and decision records of this turn."""
    examples = _examples(shop, CPT_KINDS, turn)
    return _supervise(shop, run, turn, "cpt", parent, examples)


def finetune(shop: Workshop, run: StageRun, turn: int, parent: str) -> dict[str, Any]:
    """Cold-start SFT on the trajectories chosen for this turn, observations masked."""
    return _supervise(shop, run, turn, "sft", parent, _examples(shop, ("trajectory",), turn))


def _supervise(shop: Workshop, run: StageRun, turn: int, stage: str, parent: str, examples: Sequence[Example]) -> dict[str, Any]:
    settings = shop.config.for_turn(turn)
    folder = shop.home.policies / policy_id(turn, stage)
    start, seed = shop.folder(shop.policy(parent)), seed_from(shop.config.seed, run.id)
    if stage == "cpt":
        result = train_cpt(start, examples, folder, settings.cpt, seed, run.metric)
    else:
        result = train_sft(start, examples, folder, settings.sft, seed, run.metric)
    return _finish(shop, run, turn, stage, parent, result)


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
    return _finish(shop, run, turn, "rl", parent, result, variant)


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
        judged, scores = score([request.task for request in missing], rollouts.rollout(missing))
        shop.lake.add([*judged, *scores])
        stored |= {trajectory.id: trajectory for trajectory in judged}
    return [stored[request.trajectory_id] for request in requests]


def _finish(shop: Workshop, run: StageRun, turn: int, stage: str, parent: str, result: TrainResult, variant: str = "") -> dict[str, Any]:
    policy = policy_id(turn, stage, variant)
    _register(shop, policy, parent, stage, result.path, turn, run.run.snapshot_before)
    for name in ("checkpoints", "weights"):
        shutil.rmtree(result.path / name, ignore_errors=True)
    return {"policy": policy, **result.figures}


def _register(shop: Workshop, policy: str, parent: str | None, stage: str, folder: Path, turn: int, snapshot: int | None = None) -> None:
    shop.lake.replace([Policy(policy, parent, stage, str(folder.relative_to(shop.home.root)), digest_files(folder), snapshot, turn)])


def _examples(shop: Workshop, kinds: Sequence[str], turn: int) -> list[Example]:
    return [example for example in shop.lake.examples(kinds) if example.wheel_turn == turn]


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
