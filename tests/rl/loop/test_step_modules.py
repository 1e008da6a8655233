"""A reader who follows one RL step opens at most 15 modules of `rl` (without the sampler behind its protocol)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import rl
from rl.learner.config import ReinforceConfig
from rl.rollouts.collect import Collected
from tests.rl.toy import Sampler, Scripted, learn

MOST = 15


def test_a_step_runs_code_of_at_most_15_modules(policy: Path, tmp_path: Path) -> None:
    room, modules, sampler = str(Path(rl.__file__).parent), set[str](), Sampler(2)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(room):
            modules.add(frame.f_code.co_filename.removeprefix(room))

    def collect(step: int) -> Collected:
        collected = sampler.collect(step)
        sys.setprofile(profile)  # from here through publishing and collecting to the metrics of the next step
        return collected

    def metrics(step: int, metrics: dict[str, float]) -> None:
        if step == 2:
            sys.setprofile(None)

    config = ReinforceConfig(steps=2, tasks_per_step=2, samples_per_task=2, save_every=1)
    before = sys.getprofile()
    try:
        learn(policy, tmp_path / "out", config, Scripted(collect, sampler.publish, metrics), seed=1)
    finally:
        sys.setprofile(before)
    assert "/learner/local.py" in modules
    assert len(modules) <= MOST, sorted(modules)
