"""Tokens a second of CPT and SFT against a bare PyTorch loop on the same packed batches: `python -m benchmarks.train_throughput [--json]`.

The bare loop makes the same steps: forward in the model's own code, cross-entropy over the whole vocabulary, backward, clipping by norm,
AdamW. Both start from the same weights and are timed in turn, `--repeats` times, from the end of the first tenth of their steps on, so that
another load on the machine meets both. `ratio` is the median of the pairs' ratios; the aim is 0.85. Nothing is downloaded: examples are
random tokens, whose lengths are drawn like those of the quickstart's. `tokens` counts those of examples, padding is none.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from rl.learner.config import LearnerConfig
from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy, load_policy
from rl.renderers.examples import EncodedExample
from rl.supervised.config import CptConfig, SftConfig, SupervisedConfig
from rl.supervised.cpt import train_cpt
from rl.supervised.training import PackingCollator, pack_examples, packed_share, train_sft

LENGTHS = (24, 160)
"""Tokens of the shortest and of the longest example."""


CLOCK: Callable[[], float] = time.perf_counter
"""What both are timed by."""


def examples(count: int, vocabulary: int, seed: int) -> list[EncodedExample]:
    """Random examples, every other run of 12 tokens of which is an action."""
    chance = random.Random(seed)
    sizes = [min(LENGTHS[1], LENGTHS[0] + int(chance.expovariate(1 / 40))) for _ in range(count)]
    return [
        EncodedExample(tuple(chance.randrange(300, vocabulary) for _ in range(size)), tuple(bool(place // 12 % 2) for place in range(size)))
        for size in sizes
    ]


def ours(policy: Path, given: list[EncodedExample], config: SupervisedConfig, steps: int) -> float:
    """Steps a second of this package's stage, after its first tenth."""
    times: dict[int, float] = {}

    def tell(step: int, figures: Mapping[str, float]) -> None:
        times[step] = CLOCK()

    train = train_cpt if isinstance(config, CptConfig) else train_sft
    with tempfile.TemporaryDirectory() as output:
        train(policy, given, Path(output), config, 1, tell)
    first = steps // 10
    return (steps - first) / (times[steps] - times[first])


def bare(policy: Path, given: list[EncodedExample], config: SupervisedConfig, steps: int) -> float:
    """Steps a second of a bare loop over the same rows, after its first tenth."""
    model, _ = load_policy(policy)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device).train()
    rows = pack_examples(given, config.row_tokens, masked=isinstance(config, SftConfig))
    order = RandomSampler(rows, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(rows, config.rows_per_pass, sampler=order, collate_fn=PackingCollator(0))
    optimizer = torch.optim.AdamW(model.parameters(), config.learning_rate, betas=(config.beta1, config.beta2), weight_decay=0.0)
    started = 0.0
    for step, batch in enumerate(loader, start=1):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            output = model(**{name: tensor.to(device) for name, tensor in batch.items()}, use_cache=False)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        if step == steps // 10:
            output.loss.item()
            started = CLOCK()
        if step == steps:
            output.loss.item()
            break
    return (steps - steps // 10) / (CLOCK() - started)


def measure(policy: Path, kind: type[SupervisedConfig], steps: int, repeats: int) -> dict[str, Any]:
    """Tokens a second of both, the share of packed rows that is used, and the ratio."""
    size = kind().row_tokens * kind().rows_per_step
    learner = LearnerConfig(gpus=1 if torch.cuda.is_available() else 0)
    config = kind(log_every=max(steps // 10, 1), save_every=10 * steps, max_tokens=steps * size, learner=learner)
    given = examples(steps * size // 40, len(load_policy(policy)[1]), seed=3)
    rows = pack_examples(given, config.row_tokens, masked=False)
    packed = packed_share(rows["seq_lengths"], config.row_tokens)
    pairs = []
    for _ in range(repeats):
        pairs.append((ours(policy, given, config, steps), bare(policy, given, config, steps)))
    rates = [statistics.median(rate * size * packed for rate in column) for column in zip(*pairs, strict=True)]
    ratios = sorted(mine / theirs for mine, theirs in pairs)
    return {
        "stage": kind.__name__.removesuffix("Config").lower(),
        "tokens_per_second": round(rates[0]),
        "bare_tokens_per_second": round(rates[1]),
        "ratio": round(statistics.median(ratios), 3),
        "lowest": round(ratios[0], 3),
        "highest": round(ratios[-1], 3),
        "packed": round(packed, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--processor-time", action="store_true", help="seconds of the processor, not of the wall: for a busy machine")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.processor_time:
        global CLOCK
        CLOCK = time.process_time
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        texts = [" ".join(f"{number:x}" for number in range(0, 2**24, 999))]  # enough of them for the whole vocabulary
        policy = create_policy(PolicyConfig(), texts, (), Path(folder) / "policy", 1)
        table = [measure(policy, kind, arguments.steps, arguments.repeats) for kind in (CptConfig, SftConfig)]
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "steps": arguments.steps, "repeats": arguments.repeats, "stages": table}))
        return
    print("| stage | tokens/s | bare loop | ratio (lowest to highest) | rows used |")
    print("| --- | --- | --- | --- | --- |")
    for row in table:
        spread = f"{row['ratio']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})"
        print(f"| {row['stage']} | {row['tokens_per_second']} | {row['bare_tokens_per_second']} | {spread} | {100 * row['packed']:.1f} % |")


if __name__ == "__main__":
    main()
