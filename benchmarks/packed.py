"""RL's learner on a chat model: trajectories joined in one row against rows side by side with padding, on real questions about films.

    FLYWHEEL_DATA=… flywheel synth --profile smollm2 --home runs/films        # demonstrations, in the model's own chat form
    python -m benchmarks.packed --home runs/films --command "…" [--keep packed]

A step is the package's own (`rl/loop/step.py`): loss, backward pass and optimiser over `--trajectories` demonstrations of the home, written
as rollouts of the same actions would be, in passes of `--per-pass`. The two attentions take turns in one process, `--repeats` times; tokens
are those that go through the model without padding. On a machine with other work seconds of the processor say more than the clock's, so
both are told. Memory is `benchmarks/memory.py`'s, of the model's first `--layers` layers, at each of `--contexts`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from benchmarks import evidence, memory
from benchmarks.learner import Unpublished
from flows.config import FlywheelConfig
from flows.home import Home
from flows.stages.training import encode
from rl.loop.protocols import TrainingHooks
from rl.policies.policy import load_policy
from rl.renderers.examples import EncodedExample
from rl.training.base import run_trainer
from rl.training.config import MonitorConfig, ReinforceConfig
from rl.training.filters import Collected
from synth.parts import SFT_KINDS
from warehouse import Lake, Outcome, StopReason, Trajectory, Turn

ATTENTIONS = {"packed": "varlen", "padded": "sdpa"}
LIKELY = -1.0
"""What stands for the log-probability of every token of a demonstration, which nothing sampled."""


def as_trajectory(example: EncodedExample, number: int) -> Trajectory:
    """A demonstration as the trajectory of the same tokens; every other one is rewarded."""
    parts = [
        (acted, tuple(token for token, _ in own))
        for acted, own in groupby(zip(example.token_ids, example.trained, strict=True), key=lambda each: each[1])
    ]
    prompt = () if parts[0][0] else parts.pop(0)[1]
    replies = [*(ids for acted, ids in parts if not acted), ()]
    actions = [ids for acted, ids in parts if acted]
    turns = tuple(
        Turn(index, action, (LIKELY,) * len(action), "", "search", None, reply, "", None, "ok", 0.0, 0)
        for index, (action, reply) in enumerate(zip(actions, replies, strict=False))
    )
    outcome = Outcome.SUCCESS if number % 2 else Outcome.FAILURE
    when = datetime.now(UTC)
    return Trajectory(
        f"t-{number}",
        "t",
        "p",
        "rl",
        len(turns),
        prompt,
        turns,
        StopReason.ANSWERED,
        outcome,
        float(number % 2),
        0,
        when,
        0.0,
        sample=number,
    )


def trajectories(home: Path, config: FlywheelConfig, policy: Path, count: int) -> list[Trajectory]:
    """So many demonstrations of a home, drawn at random, in the tokens of the policy."""
    with Lake(home, read_only=True) as lake:
        examples = lake.examples(SFT_KINDS)
    encoded, _ = encode(config.rollout, policy, random.Random(0).sample(examples, count))
    return [as_trajectory(each, number) for number, each in enumerate(encoded)]


def step(model: Any, tokenizer: Any, given: Sequence[Trajectory], config: ReinforceConfig) -> dict[str, float]:
    """One step: its seconds of learning, by the clock and of the processor, and its tokens a second of the latter."""
    found: dict[str, float] = {}

    def take(number: int, figures: dict[str, float]) -> bool:
        found.update(figures, processor=time.process_time() - began)
        return True

    collected = Collected(tuple(given))
    with tempfile.TemporaryDirectory() as folder:
        hooks = TrainingHooks(lambda number: collected, lambda path, version: None)
        trainer = Unpublished(model, tokenizer, config, Path(folder), 1, hooks)
        began = time.process_time()
        with closing(trainer.publisher):
            run_trainer(trainer, config, take)
    tokens = sum(
        len(each.prompt_ids) + sum(len(turn.action_ids) + len(turn.observation_ids) for turn in each.turns)
        for each in collected.trajectories
    )
    return {"tokens": tokens, "seconds": tokens / found["learner_tokens_per_second"], "processor_seconds": found["processor"]}


def speeds(home: Path, policy: Path, count: int, per_pass: int, repeats: int) -> dict[str, Any]:
    """What each attention took, repeat by repeat."""
    settings = Home(home).load()
    given = trajectories(home, settings, policy, count)
    model, tokenizer = load_policy(policy)
    rl = {
        "steps": 1_000_000, "save_every": 1_000_000, "tasks_per_step": 1, "samples_per_task": count, "trajectories_per_pass": per_pass,
        "learning_rate": 1e-6, "health": MonitorConfig(limits=(), information_tasks=0),
    }  # fmt: skip
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ATTENTIONS}
    for _ in range(repeats):
        for name, attention in ATTENTIONS.items():
            found[name].append(step(model, tokenizer, given, ReinforceConfig(**rl, attn_implementation=attention)))
            print(json.dumps({name: found[name][-1]}), flush=True)
    lengths = sorted(len(each.prompt_ids) + sum(len(t.action_ids) + len(t.observation_ids) for t in each.turns) for each in given)
    return {"lengths": lengths, "per_pass": per_pass, "repeats": found}


def peaks(policy: Path, contexts: Sequence[int], layers: int | None) -> list[dict[str, Any]]:
    """The peak of memory of each attention at each context."""
    rows = []
    for tokens in contexts:
        for name, attention in ATTENTIONS.items():
            row = memory.measure(policy, tokens, layers, bfloat16=False, checkpointing=False, attention=attention)
            rows.append({"attention": name, "tokens": tokens, "bytes": row["measured"]})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def ratio(repeats: dict[str, list[dict[str, float]]], key: str) -> float:
    """How many times as many tokens a second joined rows make, by the medians."""
    return statistics.median(each[key] for each in repeats["padded"]) / statistics.median(each[key] for each in repeats["packed"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--policy", type=Path, help="by default the one that the home's configuration names")
    parser.add_argument("--trajectories", type=int, default=32)
    parser.add_argument("--per-pass", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--contexts", default="512,1024,2048,4096")
    parser.add_argument("--layers", type=int, help="of the model, for memory alone; all without it")
    parser.add_argument("--keep", help="name of a file of results in benchmarks/results")
    parser.add_argument("--command", action="append", default=[], help="what made home and figures, for --keep; repeatable")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    policy = options.policy or Home(options.home).load().policy.folder
    timed = speeds(options.home, policy, options.trajectories, options.per_pass, options.repeats)
    contexts = [int(size) for size in options.contexts.split(",") if size]
    content = {
        "commands": options.command, "threads": options.threads, "layers": options.layers, "speeds": timed,
        "peaks": peaks(policy, contexts, options.layers),
    }  # fmt: skip
    if options.keep:
        evidence.keep(options.keep, content)
    shares = [f"{ratio(timed['repeats'], f'{name}seconds'):.2f} by the {by}" for name, by in (("processor_", "processor"), ("", "clock"))]
    print(f"packed / padded: {', '.join(shares)}")


if __name__ == "__main__":
    main()
