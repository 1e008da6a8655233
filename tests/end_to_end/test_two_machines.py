"""The wheel over two machines that share no folder: the driver, its home and the learner on one, engines and environments on the other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import ray

from tests.two_machines import seen, two_machines
from tests.watching import run_watched
from warehouse import Lake

pytestmark = [pytest.mark.end_to_end, pytest.mark.long, pytest.mark.timeout(1000)]

SMALL = Path(__file__).parent / "small.toml"


@pytest.mark.parametrize("transfer", ["gloo", "files"])
def test_the_wheel_turns_over_two_machines_that_share_no_folder(transfer: str, tmp_path: Path) -> None:
    hidden = tmp_path / "first"
    hidden.mkdir()
    home = hidden / "home"
    with two_machines(hidden) as address:
        command = [sys.executable, "-m", "flows.cli", "run", "--profile", str(SMALL), "--home", str(home)]
        command += ["--set", f"rollout.ray.address={address}", "--set", f"rollout.engine.transfer={transfer}"]
        published = run_watched(command, home / "policies" / "t1-rl" / "weights", "*/model.safetensors", 900)
        ray.init(address=address)
        assert ray.get(seen.remote(str(hidden))) == [], "the second machine sees the home"
    with Lake(home, read_only=True) as lake:
        assert {run.state for run in lake.runs()} == {"completed"}
        assert {policy.stage for policy in lake.policies()} >= {"init", "cpt", "sft", "rl"}
        metrics = {metric.name: metric.value for metric in lake.metrics("t1-rl")}
        sampled = lake.trajectories("stage = 'rl'")
        tried = lake.query("SELECT count(*) AS n FROM evaluations WHERE policy = 't1-rl' AND invalid < tasks").to_pylist()[0]["n"]
    assert sampled and {trajectory.error for trajectory in sampled} == {None} and tried
    assert {turn.policy_version for trajectory in sampled for turn in trajectory.turns} == {0, 1, 2, 3}
    assert metrics["weight_difference"] < 1e-3, "the engines had the learner's weights"
    written = {path.split("/")[0].removesuffix(".part") for path in published}
    if transfer == "gloo":
        assert written <= {"000002"}, "what is sent is written behind checkpoints alone"
    else:
        assert {"000000", "000004"} <= written
