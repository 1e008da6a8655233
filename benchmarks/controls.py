"""What reinforcement learning is worth beside two honest controls, in a home whose wheel has made SFT and RL.

    python -m benchmarks.controls --home runs/smollm2 [--json]

Both begin with the policy that RL began with. `rft` is rejection-sampling fine-tuning: that policy samples the same tasks in the same order
as RL's steps did, until it has sampled as many action tokens, and is fine-tuned on its successes. `further` is more of the cold start: as
many further optimiser steps on the demonstrations as RL made. Each is evaluated on the wheel's own suite, and RL is compared with each on
the same tasks (McNemar, exact). What was done is not done again.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ablations import SUITE, do, judge
from flows.context import RunContext, open_context
from flows.plan import evaluation_id, policy_id
from flows.results import paired, read_verdicts
from flows.stage_run import StageRun
from rl.config import SftConfig
from warehouse import Example, Trajectory
from warehouse.digests import seed_from

ITERATION = 1
SFT, RL = policy_id(ITERATION, "sft"), policy_id(ITERATION, "rl")


@dataclass(frozen=True, slots=True)
class Control:
    """One way of spending as much as RL did."""

    name: str
    words: str

    @property
    def policy(self) -> str:
        """Id of the policy that it makes."""
        return policy_id(ITERATION, "sft", self.name)


RFT = Control("rft", "rejection-sampling fine-tuning on as many sampled tokens")
FURTHER = Control("further", "SFT for as many further steps")


def main() -> None:
    """Make the controls, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--per-task", type=int, default=4, help="successes of one task that rft learns from, at most")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with open_context(options.home) as context:
        do(context, RFT.policy, "sft", partial(reject_and_tune, context, options.per_task))
        do(context, FURTHER.policy, "sft", partial(tune_further, context))
        for control in (RFT, FURTHER):
            do(context, evaluation_id(control.policy, SUITE), "eval", partial(judge, context, control.policy))
        found = {"runs": _figures(context), "comparison": comparison(context)}
    print(json.dumps(found, indent=None if options.json else 2))


def reject_and_tune(context: RunContext, per_task: int, run: StageRun) -> dict[str, Any]:
    """Sample with the policy after SFT what RL sampled, and fine-tune it on its successes."""
    from rl.rewards.reward import reward_trajectories

    tokens = 0
    wanted = _tokens(context, f"stage = 'rl' AND policy = '{RL}'")
    rollouts, step = context.rollouts(context.folder(context.policy(SFT))), 0
    sampled: list[Trajectory] = []
    curriculum = _curriculum(context)
    while tokens < wanted:
        step += 1
        requests = _requests(context, run, curriculum, step)
        done = rollouts.rollout(requests)
        rewarded = reward_trajectories([request.task for request in requests], done, context.verifiers())
        curriculum.observe(step, rewarded.trajectories)
        context.lake.add([*rewarded.trajectories, *rewarded.scores])
        sampled += rewarded.trajectories
        tokens += sum(len(turn.action_ids) for trajectory in done for turn in trajectory.turns)
        run.advance(tokens, wanted)
    examples = _successes(sampled, per_task)
    figures = _tune(context, RFT, examples, context.config.for_turn(ITERATION).sft, run)
    return {**figures, "sampled_tokens": tokens, "wanted_tokens": wanted, "sampled": len(sampled), "successes": len(examples)}


def tune_further(context: RunContext, run: StageRun) -> dict[str, Any]:
    """More steps of the cold start, as many as RL made."""
    settings = context.config.for_turn(ITERATION)
    steps = settings.rl.steps * settings.rl.epochs
    rows = next(iter(context.lake.runs("id = ?", [SFT]))).figures["rows"]
    config = settings.sft.model_copy(update={"epochs": steps * settings.sft.rows_per_step / rows, "max_tokens": None})
    examples = [each for each in context.lake.examples(("trajectory",)) if each.wheel_turn == ITERATION]
    return _tune(context, FURTHER, examples, config, run)


def comparison(context: RunContext) -> list[dict[str, Any]]:
    """Success of every policy, and RL against each on the same tasks."""
    verdicts = read_verdicts(context.lake)
    sql = "SELECT policy, hops, tasks, invalid, success, low, high FROM evaluations WHERE suite = ? ORDER BY policy, hops NULLS FIRST"
    rows = context.lake.query(sql, [SUITE]).to_pylist()
    for row in rows:
        test = paired(verdicts.get((row["policy"], SUITE), {}), verdicts.get((RL, SUITE), {})) if row["hops"] is None else None
        row |= {"rl_gain": test.difference, "p_value": test.p_value} if test is not None and row["policy"] != RL else {}
    return rows


def _tune(context: RunContext, control: Control, examples: Sequence[Example], config: SftConfig, run: StageRun) -> dict[str, Any]:
    from flows.stages.training import encode, finish
    from rl.training.supervised import train_sft

    context.stop_engines()
    start, folder = context.folder(context.policy(SFT)), context.home.policies / control.policy
    encoded, _ = encode(context.config.rollout, start, examples)
    result = train_sft(start, encoded, folder, config, seed_from(context.config.seed, run.id), run.metric)
    return finish(context, run, ITERATION, "sft", SFT, result, control.name)


def _successes(sampled: Sequence[Trajectory], per_task: int) -> list[Example]:
    from synth.demonstrations.cold_start import example_of

    taken: Counter[str] = Counter()
    chosen = []
    for trajectory in sorted(sampled, key=lambda each: (len(each.turns), each.id)):
        if trajectory.outcome == "success" and taken[trajectory.task_key] < per_task:
            taken[trajectory.task_key] += 1
            chosen.append(example_of(trajectory, ITERATION))
    return chosen


def _curriculum(context: RunContext) -> Any:
    """That of RL: the same tasks in the same order."""
    from rl.training.curriculum import Curriculum

    began = next(iter(context.lake.runs("id = ?", [RL]))).snapshot_before
    tasks = context.lake.tasks(split="train", at=began)
    return Curriculum(context.config.for_turn(ITERATION).rl.horizon, tasks, seed_from(context.config.seed, "rl", ITERATION))


def _requests(context: RunContext, run: StageRun, curriculum: Any, step: int) -> list[Any]:
    from flows.stages.rollouts import request

    config, policy = context.config.for_turn(ITERATION).rl, context.policy(SFT)
    horizon = curriculum.horizon(step)
    return [
        request(context, policy, task, f"{run.id}-{step:05d}-{task.key}-{sample}", "rollout", horizon, 1.0, sample=sample)
        for task in curriculum.draw(step, config.tasks_per_step)
        for sample in range(config.samples_per_task)
    ]


def _tokens(context: RunContext, where: str) -> int:
    return int(context.lake.query(f"SELECT sum(action_tokens) AS n FROM trajectories WHERE {where}").column("n")[0].as_py())


def _figures(context: RunContext) -> dict[str, Any]:
    return {run.id: run.figures for run in context.lake.runs() if run.stage in ("sft", "rl")}


if __name__ == "__main__":
    main()
