"""A wheel under an imperfect search: what its rollouts were shown is what the configuration says, and habits are measured before RL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.second_tries import sampling
from flows.config import load_config
from flows.plan import sampling_id
from rl.retrieval.indexes import build_indexes
from rl.retrieval.search import shown
from warehouse import Lake

pytestmark = [pytest.mark.end_to_end, pytest.mark.long, pytest.mark.timeout(1200)]

SMALL = str(Path(__file__).parent / "small.toml")
SETTINGS = (
    "rollout.search.imperfect={displaced=0.4, namesakes=0.4, stubs=0.3, empty=0.1}",
    'synth.demonstrations={search="imperfect", second_try=0.2}', "rl.horizon={rounds=[3, 4], hops=[2]}", "evaluation.gate={}",
)  # fmt: skip


def run(*command: str, seconds: float) -> str:
    ended = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=seconds)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def test_a_wheel_turns_under_an_imperfect_search(tmp_path: Path) -> None:
    home, set_ = tmp_path / "home", [part for setting in SETTINGS for part in ("--set", setting)]
    run("flows.cli", "run", "--profile", SMALL, "--home", str(home), *set_, seconds=900)
    measured = json.loads(run("benchmarks.second_tries", "--home", str(home), "--tasks", "5", "--json", seconds=300))
    config = load_config(SMALL, SETTINGS)
    with Lake(home, read_only=True) as lake:
        indexes = build_indexes(lake.documents(), config.rollout.search)
        sql = (
            "SELECT c.arguments, c.observation, k.split FROM tool_calls c JOIN trajectories t ON t.id = c.trajectory_id "
            "JOIN tasks k ON k.key = t.task_key WHERE c.tool = 'search' AND c.outcome IN ('ok', 'miss')"
        )
        calls = lake.query(sql).to_pylist()
        told = lake.query("SELECT stage, sum(trajectories)::INT AS n FROM persistence GROUP BY stage").to_pylist()
        sampled = {run.id for run in lake.runs("stage = 'rollout'")}
    assert calls
    for call in calls:
        index = indexes.train if call["split"] in ("train", "demonstration") else indexes.held_out
        assert index is not None and call["observation"] == shown(index.find(call["arguments"]))
    counts = {row["stage"]: row["n"] for row in told}
    assert measured["trajectories"] == counts["rollout"] == 5 * config.rl.samples_per_task and counts["rl"] > 0 and counts["eval"] > 0
    assert measured["demonstrations"]["second_try"] == pytest.approx(0.2)
    assert sampled == {sampling_id("t1-sft", sampling(home, 5, None))}
