"""The learner's tokens a second and its share of the peak: `python benchmarks/learner_throughput.py [--size half_billion] [--json]`.

A Qwen2 with random weights (`half_billion` is the architecture of Qwen2.5-0.5B, `small` what a CPU does in a minute) learns by this
package's own stages: CPT on packed rows, and RL on trajectories of several turns made up from random tokens, so that no engine runs.
Tokens are all that go through the model, observations too and padding not, from the end of the first quarter of the steps on; for RL
without the time of publishing and collecting. The floating-point operations of a token are 6 N + 12 · layers · heads · head size · T
(PaLM, arXiv 2204.02311, appendix B), N the weights of all matrices with the head, and T half the mean context of a token, for attention
is causal and does not cross documents. `share` is their rate by the peak of `--peak` TFLOP/s, by default that of the GPU's bfloat16.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rl.loop.protocols import TrainingHooks
from rl.loop.training import train_reinforce
from rl.policies.policy import save_policy
from rl.policies.tokenization import build_tokenizer
from rl.renderers.examples import EncodedExample
from rl.training.config import MonitorConfig, ReinforceConfig
from rl.training.cpt import train_cpt
from rl.training.filters import Collected
from rl.training.optimizer_config import LearnerConfig
from rl.training.supervised_config import CptConfig
from warehouse import Outcome, StopReason, Trajectory, Turn

PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40": 181.0}
"""TFLOP/s of dense bfloat16 by the makers' data sheets (SXM), by a part of the device's name."""

LEARNER = LearnerConfig(gpus=1 if torch.cuda.is_available() else 0)


@dataclass(frozen=True, slots=True)
class Size:
    """A policy and its batches."""

    policy: dict[str, int]
    row_tokens: int
    rows_per_step: int
    rows_per_pass: int
    tasks: int
    turns: int
    action: int
    observation: int
    trajectories_per_pass: int


SIZES = {
    "half_billion": Size(
        {
            "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
            "num_key_value_heads": 2, "vocab_size": 151_936, "max_position_embeddings": 32_768,
        },
        row_tokens=4096, rows_per_step=16, rows_per_pass=4,
        tasks=16, turns=4, action=96, observation=256, trajectories_per_pass=16,
    ),
    "small": Size(
        {
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": 1000, "max_position_embeddings": 1024,
        },
        row_tokens=256, rows_per_step=4, rows_per_pass=2,
        tasks=2, turns=2, action=12, observation=24, trajectories_per_pass=8,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """What a step puts through the model."""

    tokens: int
    context: float
    """Mean number of tokens that a token attends to."""


def make_policy(size: Size, folder: Path) -> int:
    """Write a policy with random weights, and return the number of weights in its matrices, the head's once."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer([" ".join(map(str, range(500)))], 600, ())
    config = Qwen2Config(
        **size.policy, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    save_policy(model, tokenizer, folder)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)


def load_of(lengths: Sequence[int], steps: int) -> Load:
    """What sequences of these lengths are, `steps` steps together."""
    return Load(sum(lengths) // steps, sum(length * length for length in lengths) / 2 / sum(lengths))


def examples(size: Size, count: int) -> list[EncodedExample]:
    """Documents of random tokens, an eighth to a half of a row long."""
    chance = random.Random(1)
    lengths = [chance.randint(size.row_tokens // 8, size.row_tokens // 2) for _ in range(count)]
    vocabulary = size.policy["vocab_size"]
    return [EncodedExample(tuple(chance.choices(range(300, vocabulary), k=length)), (True,) * length) for length in lengths]


def trajectories(size: Size, samples: int) -> list[Trajectory]:
    """Groups of random tokens, every other one of a group rewarded."""
    chance = random.Random(2)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(chance.choices(range(300, size.policy["vocab_size"]), k=count))

    def turn(index: int) -> Turn:
        observation = tokens(size.observation) if index + 1 < size.turns else ()
        return Turn(index, tokens(size.action), (-5.0,) * size.action, "", "search", None, observation, "", None, "ok", 0.0, 0)

    return [
        Trajectory(
            f"{task}-{sample}", f"{task}", "p", "rl", size.turns, tokens(64), tuple(map(turn, range(size.turns))), StopReason.ANSWERED,
            Outcome.SUCCESS if sample % 2 else Outcome.FAILURE, float(sample % 2), 0, datetime.now(UTC), 0.0, sample=sample,
        )
        for task in range(size.tasks) for sample in range(samples)
    ]  # fmt: skip


def pre_training(size: Size, policy: Path, folder: Path, steps: int) -> tuple[float, Load]:
    """Seconds of a step of CPT, and what it puts through the model."""
    given = examples(size, 4 * steps * size.rows_per_step)
    config = CptConfig(
        row_tokens=size.row_tokens, max_example_tokens=size.row_tokens, rows_per_step=size.rows_per_step, rows_per_pass=size.rows_per_pass,
        max_tokens=steps * size.rows_per_step * size.row_tokens, log_every=1, save_every=10 * steps, learning_rate=1e-5, learner=LEARNER,
    )  # fmt: skip
    times: list[float] = []
    result = train_cpt(policy, given, folder, config, 1, lambda step, figures: times.append(time.perf_counter()))
    first = steps // 4
    room = size.rows_per_step * size.row_tokens * result.figures["packed"]
    lengths = [len(example.token_ids) for example in given]
    return (times[steps - 1] - times[first - 1]) / (steps - first), Load(round(room), load_of(lengths, 1).context)


def reinforcement(size: Size, policy: Path, folder: Path, steps: int) -> tuple[float, Load]:
    """Seconds of a step of RL, and what it puts through the model."""
    samples = 8
    collected = Collected(tuple(trajectories(size, samples)))
    config = ReinforceConfig(
        steps=steps, tasks_per_step=size.tasks, samples_per_task=samples, trajectories_per_pass=size.trajectories_per_pass,
        learning_rate=1e-6, save_every=10 * steps, health=MonitorConfig(limits=(), information_tasks=0), learner=LEARNER,
    )  # fmt: skip
    seconds: list[float] = []
    last = time.perf_counter()

    def see(step: int, figures: dict[str, float]) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds.append(now - last - figures["publish_seconds"] - figures["collect_seconds"])
        last = now

    train_reinforce(policy, folder, config, TrainingHooks(lambda step: collected, lambda path, version: None, record_metrics=see), 1)
    lengths = [len(each.prompt_ids) + sum(len(turn.action_ids) + len(turn.observation_ids) for turn in each.turns)
               for each in collected.trajectories]  # fmt: skip
    return statistics.mean(seconds[steps // 4 :]), load_of(lengths, 1)


def measure(name: str, steps: int, peak: float | None) -> list[dict[str, Any]]:
    """A row for each stage."""
    size = SIZES[name]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy"
        weights = make_policy(size, policy)
        for stage, run in (("cpt", pre_training), ("rl", reinforcement)):
            seconds, load = run(size, policy, Path(folder) / stage, steps)
            width = size.policy["num_hidden_layers"] * size.policy["hidden_size"]
            rate = load.tokens / seconds
            teraflops = rate * (6 * weights + 12 * width * load.context) / 1e12
            found.append({
                "stage": stage, "weights": weights, "tokens_per_step": load.tokens, "step_seconds": round(seconds, 4),
                "tokens_per_second": round(rate), "teraflops": round(teraflops, 4), "share": round(teraflops / peak, 4) if peak else None,
            })  # fmt: skip
    return found


def device_peak() -> float | None:
    """The peak of this machine's GPU; None where there is none, or one that is not in the table."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def main() -> None:
    """Measure and print."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="half_billion" if on_gpu else "small")
    parser.add_argument("--steps", type=int, default=20 if on_gpu else 8)
    parser.add_argument("--peak", type=float, help="TFLOP/s of the device, where the table has it not")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.size, arguments.steps, arguments.peak or device_peak())
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    if arguments.json:
        print(json.dumps({"device": device, "size": arguments.size, "steps": arguments.steps, "stages": found}))
        return
    print(
        f"{device}, {arguments.size}\n\n| stage | tokens a step | tokens/s | TFLOP/s | share of peak |\n| --- | ---: | ---: | ---: | ---: |"
    )
    for row in found:
        share = f"{100 * row['share']:.1f} %" if row["share"] is not None else "peak unknown"
        print(f"| {row['stage']} | {row['tokens_per_step']} | {row['tokens_per_second']} | {row['teraflops']} | {share} |")


if __name__ == "__main__":
    main()
