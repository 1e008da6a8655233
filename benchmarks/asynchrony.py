"""Steps of RL a minute, synchronous, one step off and asynchronous: `python -m benchmarks.asynchrony --home runs/demo [--json]`.

The same cold start, tasks, groups, batch, loss and learning rate in each mode, the stages' own code over a copy of the home, so that the
home stays as it is. Time counts from the end of the first step, for engines and environments start before it. `waiting` is the share of
that time in which the learner waited for trajectories or for the engines to take its weights; staleness, effective samples and success are
means over the last half of the steps. With fewer processors than engines and learner can use, they take them from each other, and there is
little to gain: the figures say how many there were.

`--toy` takes no home and no engine: the toy policy of the tests samples for itself in the learner's process, and each trajectory first
waits 0.3 to 1.7 seconds, as for a slow tool. What that shows is the order of waiting alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from benchmarks.homes import copy_home
from flows.config import FlywheelConfig
from flows.context import RunContext, StageRun, open_context
from flows.home import Home
from flows.overrides import apply_overrides
from flows.pipeline import run_attempt
from flows.stages.reinforcement import reinforce
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.rollout import Rollouts
from warehouse import Policy, Run, Trajectory

MODES = {
    "synchronous": ["rl.mode=synchronous"],
    "one_step_off": ["rl.mode=one_step_off"],
    "asynchronous": ["rl.mode=asynchronous", "rl.replay.max_staleness=2"],
}
SHOWN = ("success", "staleness", "staleness_max", "effective_samples", "importance_ratio")


class Timed(StageRun):
    """A stage run that records when its steps end."""

    def metric(self, step: int, figures: Mapping[str, float]) -> bool:
        if "collect_seconds" in figures:
            ENDED.append((time.perf_counter(), dict(figures)))
        return super().metric(step, figures)


ENDED: list[tuple[float, dict[str, float]]] = []


def measure(home: Path, mode: str, steps: int, settings: list[str]) -> dict[str, Any]:
    """The figures of one mode, over a copy of `home` whose first turn has not begun its RL."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Home(Path(folder) / "home")
        config = apply_overrides(Home(home).load().model_dump(mode="json"), [*settings, f"rl.steps={steps}", *MODES[mode]])
        copy_home(Home(home), copy, FlywheelConfig.model_validate(config), without=("t1-rl*", "t2-*"))
        with open_context(copy.root) as context:
            sampled = context.lake.query("SELECT id FROM trajectories WHERE stage = 'rl'").column("id").to_pylist()
            for kind, ids in ((Run, ["t1-rl"]), (Policy, ["t1-rl"]), (Trajectory, sampled)):
                context.lake.remove(kind, ids)
            return learn(context, mode)


def measure_toy(mode: str, steps: int) -> dict[str, Any]:
    """The figures of one mode with the toy of the tests."""
    from tests.flows.reinforcement_process import ToyRollouts
    from tests.flows.toy_home import home_of

    class SlowRollouts(ToyRollouts):
        async def one(self, request: RolloutRequest) -> Trajectory:
            await asyncio.sleep((1 + request.seed % 5) / 3)
            return await super().one(request)

    own = ["rl.save_every=1000", "rl.tasks_per_step=6", "rl.samples_per_task=8", f"rl.steps={steps}"]
    with tempfile.TemporaryDirectory() as folder, open_context(home_of(Path(folder) / "home", *own, *MODES[mode])) as context:
        context._rollouts = cast(Rollouts, SlowRollouts(kill=-1))
        return learn(context, mode)


def learn(context: RunContext, mode: str) -> dict[str, Any]:
    """Run the stage and summarize it."""
    ENDED.clear()
    run_attempt(context.lake, "t1-rl", "rl", 1, {}, lambda run: reinforce(context, Timed(run.lake, run.run), 1, "t1-sft"))
    return summary(mode)


def summary(mode: str) -> dict[str, Any]:
    """Summary of the recorded steps."""
    seconds = ENDED[-1][0] - ENDED[0][0]
    figures: dict[str, list[float]] = defaultdict(list)
    for _, each in ENDED[1:]:
        for name, value in each.items():
            figures[name].append(value)
    waiting = sum(figures["collect_seconds"]) + sum(figures["publish_seconds"])
    half = (len(ENDED) - 1) // 2
    late = {name: statistics.fmean(figures[name][half:]) for name in SHOWN if figures[name]}
    return {"mode": mode, "steps": len(ENDED), "seconds_a_step": seconds / (len(ENDED) - 1), "waiting": waiting / seconds, **late}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--home", type=Path, help="a home whose cold start each mode begins with")
    start.add_argument("--toy", action="store_true", help="the toy of the tests, with a slow tool, in the place of engines")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--set", action="append", default=[], help="a setting of all modes, such as rl.save_every=100")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    if arguments.toy:
        found = [measure_toy(mode, arguments.steps) for mode in arguments.modes]
    else:
        found = [measure(arguments.home, mode, arguments.steps, arguments.set) for mode in arguments.modes]
    report = {"processors": os.cpu_count(), "load_before": load, "modes": found}
    print(json.dumps(report)) if arguments.json else _print(report)


def _print(report: dict[str, Any]) -> None:
    print(f"{report['processors']} processors, load {report['load_before']:.0f}\n")
    print("| mode | s a step | waiting | success | staleness | oldest | effective |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in report["modes"]:
        share, success = f"{100 * row['waiting']:.0f} %", f"{100 * row['success']:.0f} %"
        told = f"{row['staleness']:.2f} | {row['staleness_max']:.1f} | {row['effective_samples']:.3f}"
        print(f"| {row['mode']} | {row['seconds_a_step']:.2f} | {share} | {success} | {told} |")


if __name__ == "__main__":
    main()
