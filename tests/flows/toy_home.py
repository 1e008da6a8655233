"""A home that is ready for its first RL stage: a toy's cold start, and tasks that the toy of `reinforcement_process` can answer."""

from __future__ import annotations

from pathlib import Path

from flows.config import load_config
from flows.home import Home
from tests.flows.homes import SMALL
from tests.rl.toy import make_policy
from warehouse import Lake, Policy, Task
from warehouse.digests import digest_files

SETTINGS = (
    "rl.steps=8", "rl.tasks_per_step=3", "rl.samples_per_task=4", "rl.save_every=3", "rl.learning_rate=0.01", "rl.rewards.parts={}",
    "rl.filters.variance=false", "rl.filters.refills=0", "rl.horizon.hops=[1]", "rl.health.limits=[]",
)  # fmt: skip


def home_of(root: Path, *settings: str) -> Path:
    """A home that is ready for its first RL stage: tasks and a cold start."""
    home = Home(root)
    home.claim(load_config(SMALL, (*SETTINGS, *settings)))
    folder = make_policy(home.policies / "t1-sft")
    tasks = [Task(f"k{number:02d}", "search", f"Question {number}?", ("yes",), provenance={"path": []}) for number in range(20)]
    with Lake(root) as lake:
        lake.add([*tasks, Policy("t1-sft", None, "sft", "policies/t1-sft", digest_files(folder), None)])
    return root
