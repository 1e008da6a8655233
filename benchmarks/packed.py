"""RL's learner on a chat model: trajectories joined in one row, prompts shared or not, against rows side by side with padding.

    flywheel train sft --home runs/films                                       # a home of the profile smollm2
    flywheel rollout --home runs/films --policy t1-sft --tasks "split = 'train'" --samples 8
    python -m benchmarks.packed --home runs/films --command "…" [--keep packed]

A step is the package's own (`rl/loop.py`): loss, backward pass and optimiser over `--groups` tasks of the home, `--samples`
trajectories of each as they were sampled, in passes of `--per-pass`. Every other one is said to be a success, so that all are learnt from.
The learners take turns in one process, `--repeats` times; tokens are those of the trajectories, whatever goes through the model. On a
machine with other work seconds of the processor say more than the clock's, so both are told. Memory is `benchmarks/memory.py`'s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import evidence
from benchmarks.learner import Unpublished, learn_again
from rl.learner.config import MonitorConfig, ReinforceConfig
from rl.policies.policy import load_policy
from warehouse import Lake, Outcome, Trajectory

ATTENTIONS = {"shared": "varlen", "packed": "varlen", "padded": "sdpa"}
"""The attention of each learner; `packed` computes each prompt once per occurrence in a trajectory."""


def groups(home: Path, count: int, samples: int) -> list[Trajectory]:
    """Trajectories that `flywheel rollout` stored: the first of so many tasks, so many of each."""
    found = "SELECT task_key FROM trajectories WHERE stage = 'rollout' GROUP BY task_key HAVING count(*) >= ? ORDER BY task_key LIMIT ?"
    with Lake(home, read_only=True) as lake:
        keys = [row["task_key"] for row in lake.query(found, [samples, count]).to_pylist()]
        stored = [lake.trajectories("stage = 'rollout' AND task_key = ?", [key])[:samples] for key in keys]
    if len(keys) < count:
        raise SystemExit(f"{home} has {len(keys)} tasks with {samples} trajectories of `flywheel rollout`, and {count} are wanted.")
    return [judged(each, number) for group in stored for number, each in enumerate(group)]


def judged(trajectory: Trajectory, number: int) -> Trajectory:
    """A trajectory as a success where its number is odd, else as a failure."""
    outcome = Outcome.SUCCESS if number % 2 else Outcome.FAILURE
    return replace(trajectory, outcome=outcome, reward=float(number % 2), step=None, error=None)


def step(model: Any, tokenizer: Any, given: Sequence[Trajectory], config: ReinforceConfig, shares: bool) -> dict[str, float]:
    """One step: its seconds of learning, by the clock and of the processor, and its tokens a second of the latter."""
    found: dict[str, float] = {}

    def take(number: int, figures: dict[str, float]) -> bool:
        found.update(figures, processor=time.process_time() - began)
        return True

    with tempfile.TemporaryDirectory() as folder, closing(Unpublished(model, tokenizer, config, Path(folder), 1)) as learner:
        learner.loss.shares &= shares
        began = time.process_time()
        learn_again(learner, config, given, take)
    tokens = sum(len(each.prompt_ids) + sum(len(turn.action_ids) + len(turn.observation_ids) for turn in each.turns) for each in given)
    return {"tokens": tokens, "seconds": tokens / found["learner_tokens_per_second"], "processor_seconds": found["processor"]}


def speeds(given: Sequence[Trajectory], policy: Path, per_pass: int, repeats: int) -> dict[str, Any]:
    """What each learner took, repeat by repeat."""
    model, tokenizer = load_policy(policy)
    tasks = len({each.task_key for each in given})
    rl = {
        "steps": 1_000_000, "save_every": 1_000_000, "tasks_per_step": tasks, "samples_per_task": len(given) // tasks,
        "trajectories_per_pass": per_pass, "learning_rate": 1e-6, "health": MonitorConfig(limits=(), information_tasks=0),
    }  # fmt: skip
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ATTENTIONS}
    for _ in range(repeats):
        for name, attention in ATTENTIONS.items():
            config = ReinforceConfig(**rl, attn_implementation=attention)
            found[name].append(step(model, tokenizer, given, config, name == "shared"))
            print(json.dumps({name: found[name][-1]}), flush=True)
    lengths = sorted(len(each.prompt_ids) + sum(len(t.action_ids) + len(t.observation_ids) for t in each.turns) for each in given)
    prompts = sorted({each.task_key: len(each.prompt_ids) for each in given}.values())
    return {"lengths": lengths, "prompts": prompts, "per_pass": per_pass, "repeats": found}


def ratio(repeats: dict[str, list[dict[str, float]]], name: str, key: str) -> float:
    """How many times as many tokens a second a learner makes as one with padding, by the medians."""
    return statistics.median(each[key] for each in repeats["padded"]) / statistics.median(each[key] for each in repeats[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--policy", default="t1-sft", help="the one that learns")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--per-pass", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--keep", help="name of a file of results in benchmarks/results")
    parser.add_argument("--command", action="append", default=[], help="what made home and figures, for --keep; repeatable")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    policy = options.home / "policies" / options.policy
    timed = speeds(groups(options.home, options.groups, options.samples), policy, options.per_pass, options.repeats)
    if options.keep:
        evidence.keep(options.keep, {"commands": options.command, "threads": options.threads, "speeds": timed})
    for name in ("shared", "packed"):
        told = [
            f"{ratio(timed['repeats'], name, f'{key}seconds'):.2f} by the {by}" for key, by in (("processor_", "processor"), ("", "clock"))
        ]
        print(f"{name} / padded: {', '.join(told)}")


if __name__ == "__main__":
    main()
