"""Log-probabilities of an agent's own tokens on a CPU: the head over those alone against TRL's over every position, forward and backward.

    python -m benchmarks.token_scores [--json] [--parameters small|smollm2] [--repeats 3]

The rows have the shape of a rollout step: 300 tokens, of which the policy wrote 50. `--parameters smollm2` is a Llama of the sizes of
SmolLM2-135M, with random weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer.utils import add_fused_lm_head

from rl.learner.packing import chosen_scores

ROWS, TOKENS, WRITTEN = 8, 300, 50
SIZES = {
    "small": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 3, "num_key_value_heads": 3},
    "smollm2": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--parameters", choices=SIZES, default="small")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=49_152, tie_word_embeddings=True, **SIZES[options.parameters])
    model = LlamaForCausalLM(config)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.randint(0, config.vocab_size, (ROWS, TOKENS))
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    chosen[:, TOKENS // 2 : TOKENS // 2 + WRITTEN] = True
    attention = torch.ones_like(ids)

    def trl() -> Tensor:
        return model(input_ids=ids, attention_mask=attention, labels=ids, fused_lm_head=True).log_probs[chosen[:, 1:]]

    def ours() -> Tensor:
        return chosen_scores(model, ids, chosen, attention)[0]

    seconds: dict[str, list[float]] = {name: [] for name in ("trl", "ours")}
    with torch.autocast("cpu", torch.bfloat16):
        difference = (trl() - ours()).abs().max().item()
        for _ in range(options.repeats):
            for name, score in (("trl", trl), ("ours", ours)):
                seconds[name].append(_timed(model, score))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    figures = {**{f"{name}_seconds": value for name, value in medians.items()}, "ratio": medians["trl"] / medians["ours"]}
    figures |= {"largest_difference": difference, "model": options.parameters, "repeats": options.repeats}
    print(json.dumps(figures) if options.json else "\n".join(f"{name:20} {value}" for name, value in figures.items()))


def _timed(model: LlamaForCausalLM, score: Callable[[], Tensor]) -> float:
    started = time.perf_counter()
    score().sum().backward()
    model.zero_grad()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
