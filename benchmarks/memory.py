"""Peaks of memory by context, against the planned ones, as data.

    python -m benchmarks.memory --policy models/smollm2 --contexts 512,2048,4096 [--keep memory_smollm2 --command "…"]
    python -m benchmarks.memory --policy models/smollm2 --contexts 1024,32768 --layers 2 --attention varlen sdpa

Each measurement is a process of its own that loads a policy and makes two steps on two trajectories of so many tokens together, joined in
one row: forward, the log-probabilities of half of its tokens by the learner's own head for CPUs (`rl/learner/packing.py`), backward,
clipping, AdamW. `measured` is the high-water mark of its resident set over what it had before the weights were loaded; `planned` is
`rl/hardware.py`'s. `--attention sdpa` has the same row under a mask of tokens times tokens, which nobody plans for. `--layers` takes the
first of the policy's layers alone, for a machine with less memory; `--critic` puts a value head on it. With `--keep` a row takes the place
of the one of the same settings that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl.hardware import Architecture, Pass, learner_memory

SETTINGS = ("layers", "bfloat16", "checkpointing", "critic", "tokens", "attention")
"""What tells the rows of a file of results apart."""
LARGE_BLOCK = 1 << 16
"""Blocks of this size are given back when they are freed, so that what lingers in the allocator is not counted."""


def measure(
    policy: Path, tokens: int, layers: int | None, bfloat16: bool, checkpointing: bool, attention: str = "varlen", critic: bool = False
) -> dict[str, Any]:
    """One measurement, in a process of its own."""
    task = {
        "policy": str(policy), "tokens": tokens, "layers": layers, "bfloat16": bfloat16, "checkpointing": checkpointing,
        "attention": attention, "critic": critic,
    }  # fmt: skip
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(LARGE_BLOCK), "MALLOC_TRIM_THRESHOLD_": str(LARGE_BLOCK)}
    command = [sys.executable, "-m", "benchmarks.memory", "--child", json.dumps(task)]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    config = json.loads((policy / "config.json").read_text())
    if layers is not None:
        config["num_hidden_layers"] = layers
    work = Pass(tokens, measured["scored"], bfloat16, checkpointing)
    planned = learner_memory(Architecture.of_config(config), work, critic=critic).peak
    return {**task, **measured, "planned": planned, "ratio": round(planned / measured["measured"], 3)}


def child(task: dict[str, Any]) -> dict[str, int]:
    """What one process takes, in bytes, and how many tokens it scored."""
    import torch

    from rl.learner.config import OptimizerConfig
    from rl.learner.losses import Critic
    from rl.learner.packing import borders, chosen_scores, joins_rows, row_positions, set_attention
    from rl.policies.policy import load_policy

    torch.set_num_threads(1)
    torch.ones(64, 64, requires_grad=True).mm(torch.ones(64, 64)).sum().backward()  # what libraries allocate for themselves
    base = status("VmRSS")
    model, _ = load_policy(Path(task["policy"]))
    model.train()
    critic = Critic(model, 0, 0.0) if task["critic"] else None
    set_attention(model, OptimizerConfig(attn_implementation=task["attention"]))
    if task["layers"] is not None:
        kept: Any = model.base_model
        kept.layers = kept.layers[: task["layers"]]
    if task["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), 1e-6, fused=True)
    ids = torch.randint(0, model.config.get_text_config().vocab_size, (1, task["tokens"]), generator=torch.Generator().manual_seed(0))
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    chosen[:, task["tokens"] // 2 :] = True
    lengths = [task["tokens"] // 2, task["tokens"] - task["tokens"] // 2]
    inputs = {"position_ids": torch.tensor([row_positions(lengths)]), **(borders(lengths) if joins_rows(model) else {})}
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=task["bfloat16"]):
            scores, _ = chosen_scores(model, ids, chosen, **inputs)
            values = critic.values(task["tokens"] - 1) if critic is not None else torch.zeros(1)
        ((values**2).mean() - scores.mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"measured": status("VmHWM") - base, "scored": int(chosen.sum())}


def status(name: str) -> int:
    """A line of this process's status in bytes: `VmRSS` is the resident set now, `VmHWM` its high-water mark."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--contexts", default="512,1024,2048")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--critic", action="store_true", help="a value head as well, as PPO has it")
    parser.add_argument("--attention", nargs="+", choices=("varlen", "sdpa"), default=["varlen"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", help="name of a file of results in benchmarks/results")
    parser.add_argument("--command", action="append", default=[], help="what made the figures, for --keep; repeatable")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(json.loads(options.child))))
        return
    from benchmarks.evidence_tables import peaks  # the whole flywheel: not in the processes that are measured

    if options.policy is None:
        parser.error("name a policy's folder with --policy")
    settings = (options.layers, options.precision == "bfloat16", options.checkpointing)
    rows = []
    for tokens in map(int, options.contexts.split(",")):
        for attention in options.attention:
            rows.append(measure(options.policy, tokens, *settings, attention, options.critic))
            print(f"{tokens:,} tokens, {attention}: {rows[-1]['measured'] / 2**20:,.0f} MiB", file=sys.stderr, flush=True)
    if options.keep:
        keep(options.keep, rows, options.command)
    print(json.dumps(rows) if options.json else peaks({"rows": rows}))


def keep(name: str, rows: Sequence[Mapping[str, Any]], commands: Sequence[str]) -> None:
    """Put rows among those of a file of results, without the policy's folder, which is this machine's, in the order of their settings."""

    from benchmarks import evidence

    def settings(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[key] or 0 for key in SETTINGS)

    made = [{key: value for key, value in row.items() if key != "policy"} for row in rows]
    found = {settings(row): row for row in (*evidence.kept(name).get("rows", ()), *made)}
    evidence.keep(name, {"commands": list(commands), "rows": [found[key] for key in sorted(found)]})


if __name__ == "__main__":
    main()
