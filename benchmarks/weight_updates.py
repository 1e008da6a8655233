"""How long a weight update stops an engine: `python -m benchmarks.weight_updates [--transfer gloo] [--json]`.

Each policy has random weights, and an engine of its own that takes versions of it in turn by both ways: loaded from the folder that the
learner has written, and sent by the learner. Medians of five rounds after one that is not counted. Only the first way needs the folder.
Another engine serves adapters over the policy, of rank 16, and takes versions that are these alone. Serving them costs each token their
products, so both engines sample as well: 64 tokens behind each of 32 prompts, in five rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import evidence
from benchmarks.evidence_tables import updates
from rl.engines.base import Generation, Sampling
from rl.engines.weight_sender import WeightSender
from rl.policies.config import PolicyConfig
from rl.policies.policy import as_saved, create_policy, load_policy, save_policy
from rl.policies.transfer import adapter_weights, save_adapters
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts

POLICIES = {
    "quickstart": PolicyConfig(),
    "hundred million": PolicyConfig(layers=12, width=768, heads=12, key_value_heads=12, head_size=64, intermediate_size=2304),
}
ROUNDS = 5
RANK = 16
PROMPTS, TOKENS = 32, 64
TEXTS = [f"Amber {number} has its seat in Blue {number * 7}." for number in range(200)]


def measure(name: str, transfer: str, folder: Path) -> dict[str, Any]:
    """Seconds of a policy's updates."""
    policy = create_policy(POLICIES[name], TEXTS, (), folder / "policy", seed=0)
    model, tokenizer = load_policy(policy)
    engine = {"transfer": transfer, "kv_cache_gib": 0.2} | ({} if transfer == "gloo" else {"gpus": 1})
    config = RolloutConfig.model_validate({"limits": {"max_context_tokens": 512}, "engine": engine})
    if transfer != "gloo":
        model.cuda()
    with Rollouts.start(config, policy) as rollouts:
        sender = WeightSender(rollouts.weight_sync)
        times: dict[str, list[float]] = {"write": [], "files": [], "transfer": []}
        for version in range(1, 2 * (ROUNDS + 1), 2):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.001)
            there = folder / f"{version}"
            times["write"].append(seconds(lambda there=there: save_policy(model, tokenizer, there)))
            times["files"].append(seconds(lambda there=there, version=version: rollouts.load_weights(there, version)))
            times["transfer"].append(seconds(lambda version=version: send(sender, model, folder / "sent", version + 1)))
        sender.close()
        rate = tokens_per_second(rollouts)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return {"policy": name, "mib": size / 2**20, **medians(times), "rate": rate}


def measure_adapters(name: str, folder: Path) -> dict[str, Any]:
    """Seconds of updates by adapters alone, written and loaded, and tokens a second with them."""
    from peft import LoraConfig, get_peft_model

    policy = create_policy(POLICIES[name], TEXTS, (), folder / "policy", seed=0)
    model: Any = get_peft_model(load_policy(policy)[0], LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear"))
    weights = adapter_weights(model)
    engine = {"kv_cache_gib": 0.2, "adapter_rank": RANK}
    config = RolloutConfig.model_validate({"limits": {"max_context_tokens": 512}, "engine": engine})
    with Rollouts.start(config, policy) as rollouts:
        times: dict[str, list[float]] = {"write_adapters": [], "adapters": []}
        for version in range(1, ROUNDS + 2):
            there = folder / f"{version}"
            times["write_adapters"].append(seconds(lambda there=there: save_adapters(model.peft_config["default"], weights, there)))
            times["adapters"].append(seconds(lambda there=there, version=version: rollouts.load_weights(there, version)))
        rate = tokens_per_second(rollouts)
    size = sum(weight.numel() * weight.element_size() for weight in weights.values())
    return {"mib_adapters": size / 2**20, **medians(times), "rate_adapters": rate}


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """Of each way, without its first round."""
    return {way: statistics.median(found[1:]) for way, found in times.items()}


def tokens_per_second(rollouts: Rollouts) -> float:
    """What the engine samples in a second with the weights that it was given last, in the median of some rounds."""

    async def sample() -> list[Generation]:
        asked = [Sampling(max_tokens=TOKENS, seed=number) for number in range(PROMPTS)]
        return await asyncio.gather(*(rollouts.pool.generate(f"p{n}", tuple(range(20, 60)), each) for n, each in enumerate(asked)))

    return statistics.median(PROMPTS * TOKENS / seconds(lambda: rollouts.wait(sample())) for _ in range(ROUNDS))


def send(sender: WeightSender, model: Any, folder: Path, version: int) -> None:
    """Send weights, and insist that they came."""
    if not sender.send(as_saved(model, model.state_dict()), folder, version):
        raise SystemExit("the weights did not reach the engine")


def seconds(work: Callable[[], Any]) -> float:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transfer", default="gloo", choices=["gloo", "nccl", "ipc"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", help="name of a file of results in benchmarks/results")
    arguments = parser.parse_args()
    rows = []
    for name in POLICIES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, arguments.transfer, Path(folder) / "whole") | measure_adapters(name, Path(folder) / "adapters"))
    told = {"transfer": arguments.transfer, "rank": RANK, "rows": rows}
    if arguments.keep:
        command = f"python -m benchmarks.weight_updates --transfer {arguments.transfer} --keep {arguments.keep}"
        evidence.keep(arguments.keep, {"commands": [command], **told})
    print(json.dumps(told) if arguments.json else updates(told))


if __name__ == "__main__":
    main()
