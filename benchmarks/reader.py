"""Make the policy `reader`, which reads before it learns to act: `python -m benchmarks.reader --to rl/policies/packaged/reader [--json]`.

A policy of the quickstart's size learns plain reading (`benchmarks/reading.py`) from scratch; the same seed gives the same weights on one
machine. Printed are how many questions about texts that it has not read it answers word for word, and the digest of the folder.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.reading import reading_texts
from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy, load_policy, save_policy
from rl.rollouts.config import RolloutConfig
from rl.supervised.config import CptConfig
from synth.worlds.world import world_words
from warehouse.digests import digest_files, seed_from
from warehouse.records import Example, Part, PartKind

SEED = 0
DIGEST = "071f43eddae546b4"
"""Of the weights in `rl/policies/packaged/reader`, which this module made with `SEED` and `TOKENS`."""
TOKENS = 3_000_000
TEXTS_A_TOKEN = 1 / 55
"""Texts that hold a token: more are made than needed, and training ends at `--tokens`."""
ASKED = 400
"""Questions that it is tried on."""


def main() -> None:
    """Make it, try it, and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    figures = make(options.to, options.tokens, options.seed)
    figures |= {"read": read_share(options.to, ASKED), "digest": digest_files(options.to), "seconds": time.perf_counter() - started}
    print(json.dumps(figures) if options.json else "\n".join(f"{name:12} {value}" for name, value in figures.items()))


def make(folder: Path, tokens: int, seed: int) -> dict[str, Any]:
    """Train the policy, and write it into `folder` in bfloat16; returns what training measured."""
    from flows.stages.training import encode
    from rl.supervised.cpt import train_cpt

    texts = list(reading_texts(int(tokens * TEXTS_A_TOKEN), seed))
    with TemporaryDirectory(dir=Path.cwd()) as draft:
        begun = create_policy(PolicyConfig(), texts[:20_000], world_words(), Path(draft) / "begun", seed_from(seed, "policy"))
        examples = [Example(str(number), "document", (Part(PartKind.DOCUMENT, text, True),), ()) for number, text in enumerate(texts)]
        encoded, _ = encode(RolloutConfig(), begun, examples)
        config = CptConfig(rows_per_step=4, rows_per_pass=4, optimizer="muon", learning_rate=2e-3, decay_share=0.2, max_tokens=tokens)
        result = train_cpt(begun, encoded, Path(draft) / "trained", config, seed_from(seed, "reader"), _print_metric)
        model, tokenizer = load_policy(result.path, torch.bfloat16)
        save_policy(model, tokenizer, folder)
    return {name: result.figures[name] for name in ("steps", "loss")}


def read_share(folder: Path, count: int) -> float:
    """The share of questions about unseen texts that the policy goes on to answer word for word, greedily."""
    loaded: tuple[Any, Any] = load_policy(folder)
    model, tokenizer = loaded
    right = 0
    for prompt, answer in islice(_asked(), count):
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.no_grad():
            out = model.generate(ids, max_new_tokens=16, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        said = tokenizer.decode(out[0, ids.size(1) :]).strip()
        right += said.startswith(f"{answer}.")
    return right / count


def _asked() -> Iterator[tuple[str, str]]:
    """Texts up to a last answer, and that answer."""
    for text in reading_texts(1_000_000, seed=10**6):
        found = re.fullmatch(r"(.* Answer:) ([^.]+)\.", text)
        if found is not None:
            yield found[1], found[2]


def _print_metric(step: int, figures: dict[str, float]) -> None:
    if "loss" in figures and step % 100 == 0:
        print(f"step {step}  loss {figures['loss']:.3f}", flush=True)


if __name__ == "__main__":
    main()
