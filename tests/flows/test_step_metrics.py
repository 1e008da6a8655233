"""The metrics of a finished RL run: every step has those that docs/learning.md promises, and its time is booked once."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import pytest

from flows.context import open_context
from flows.pipeline import run_attempt
from flows.stages.reinforcement import reinforce
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.rollout import Rollouts
from tests.flows.reinforcement_process import ToyRollouts
from tests.flows.toy_home import home_of
from warehouse import Lake

PAGE = Path(__file__).parents[2] / "docs" / "learning.md"
STEPS = 3
SHARES = ("rollouts", "waiting", "sync", "learning")


def promised() -> set[str]:
    """The metrics that the page promises for every step: those of its table without an asterisk."""
    table = PAGE.read_text().split("| metric | meaning |")[1].split("\n\n")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    return {name for cell in cells if not cell.endswith(" *") for name in re.findall(r"`([^`]+)`", cell)}


class SlowRollouts(ToyRollouts):
    """A toy whose trajectories take longer than an update, so that checkpoints and publishing wait for them."""

    async def one(self, request: RolloutRequest) -> Any:
        await asyncio.sleep(0.5)
        return await super().one(request)


def metrics_of(home: Path) -> dict[int, dict[str, float]]:
    """The metrics of each step of RL."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    with Lake(home, read_only=True) as lake:
        for row in lake.query("SELECT run_id, step, name, value FROM metrics WHERE stage = 'rl'").to_pylist():
            found[row["step"]][row["name"]] = row["value"]
    return found


def faults(steps: dict[int, dict[str, float]]) -> list[str]:
    """What is wrong with the shares of a run's steps, and the promised metrics that a step lacks."""
    found = []
    for step, metrics in steps.items():
        shares = [metrics.get(f"share/{name}", -1.0) for name in SHARES]
        if min(shares) < -1e-9 or max(shares) > 1 + 1e-9 or sum(shares) != pytest.approx(1.0):
            found.append(f"step {step}: shares {shares}")
        for name in sorted(promised()):
            there = any(each.startswith(name[:-1]) for each in metrics) if name.endswith("*") else name in metrics
            found += [] if there else [f"step {step}: no {name}"]
    return found


@pytest.mark.engine
@pytest.mark.parametrize(
    "mode", ["asynchronous", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("synchronous", "one_step_off"))]
)
def test_every_step_has_its_metrics_and_its_time_is_booked_once(tmp_path: Path, mode: str) -> None:
    home = home_of(tmp_path, f"rl.mode={mode}", f"rl.steps={STEPS}", "rl.save_every=1")
    with open_context(home) as context:
        context._rollouts = cast(Rollouts, SlowRollouts(-1))
        run_attempt(context.lake, "t1-rl", "rl", 1, {}, lambda run: reinforce(context, run, 1, "t1-sft"))
    steps = metrics_of(home)
    assert sorted(steps) == list(range(1, STEPS + 1))
    assert faults(steps) == []
    assert all(metrics["logprob_difference"] < 1e-4 for metrics in steps.values())
