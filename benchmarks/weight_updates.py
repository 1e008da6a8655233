"""How long an engine stands still for new weights: `python -m benchmarks.weight_updates [--transfer gloo] [--json]`.

Each policy has random weights, and an engine of its own that takes versions of it in turn by both ways: loaded from the folder that the
learner has written, and sent by the learner. Medians of five rounds after one that is not counted. Only the first way needs the folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rl.engines.weight_sender import WeightSender
from rl.policies.config import PolicyConfig
from rl.policies.policy import as_saved, create_policy, load_policy, save_policy
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts

POLICIES = {
    "quickstart": PolicyConfig(),
    "hundred million": PolicyConfig(layers=12, width=768, heads=12, key_value_heads=12, head_size=64, intermediate_size=2304),
}
ROUNDS = 5
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
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return {"policy": name, "mib": size / 2**20, **{way: statistics.median(found[1:]) for way, found in times.items()}}


def send(sender: WeightSender, model: Any, folder: Path, version: int) -> None:
    """Send weights, and insist that they came."""
    if not sender.send(as_saved(model, model.state_dict()), folder, version):
        raise SystemExit("the weights did not reach the engine")


def seconds(work: Callable[[], None]) -> float:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transfer", default="gloo", choices=["gloo", "nccl", "ipc"])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for name in POLICIES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, arguments.transfer, Path(folder)))
    if arguments.json:
        print(json.dumps({"transfer": arguments.transfer, "rows": rows}))
        return
    print(f"{'policy':16} {'MiB':>6} {'written, s':>11} {'from the folder, s':>19} {f'by {arguments.transfer}, s':>12} {'ratio':>6}")
    for row in rows:
        ratio = row["files"] / row["transfer"]
        print(f"{row['policy']:16} {row['mib']:6.0f} {row['write']:11.3f} {row['files']:19.3f} {row['transfer']:12.3f} {ratio:6.1f}")


if __name__ == "__main__":
    main()
