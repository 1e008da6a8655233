"""A suite through the real command and the real engine, killed in its middle: it goes on where it was and does nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.config import FlywheelConfig
from flows.home import Home
from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy
from tests.killing import kill_at
from warehouse import Document, Lake, Policy

pytestmark = pytest.mark.engine

ATTEMPTS = 240
SIZES = PolicyConfig(
    layers=2, width=64, heads=2, key_value_heads=2, intermediate_size=128, vocabulary_size=400, max_position_embeddings=256
)
SUITE = """
name = "small"
meaning = "Share of the small questions that one of two attempts answers rightly."
headline = "pass@2"
samples = 2
temperature = 1.0
horizon = 2
limits = { max_action_tokens = 8 }
[source]
kind = "tasks"
path = "tasks.jsonl"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a policy from scratch, a document, and no configuration of its own for the suite; one attempt at a time."""
    limits = {"max_observation_tokens": 32, "max_context_tokens": 200}
    rollout = {"limits": limits, "engine": {"kv_cache_gib": 0.1}, "concurrency": 1}
    config = {"rollout": rollout, "evaluation": {"suites": {"mine": {"counts": {}}}, "horizon": 2}}
    root = tmp_path / "home"
    Home(root).claim(FlywheelConfig.model_validate(config))
    create_policy(SIZES, ["Where is Amber Stone?"], ["Amber", "Stone"], root / "policies" / "t1-rl", seed=0)
    with Lake(root) as lake:
        lake.add([Policy("t1-rl", None, "rl", "policies/t1-rl", "w", None, promoted=True)])
        lake.add([Document("d", "Amber Stone", "Amber Stone is here.", "test")])
    (tmp_path / "small.toml").write_text(SUITE)
    rows = [{"key": f"k{number}", "question": f"Where is Amber Stone, {number}?", "answers": ["here"]} for number in range(ATTEMPTS // 2)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def command(home: Path, suite: str = "small.toml") -> list[str]:
    return [sys.executable, "-m", "flows.cli", "eval", "--home", str(home), "--suite", suite, "--json"]


def environment() -> dict[str, str]:
    """So that the command, which runs in another folder, is that of this tree."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}


def stored(home: Path) -> dict[str, Any]:
    with Lake(home, read_only=True) as lake:
        return {trajectory.id: trajectory for trajectory in lake.trajectories("suite = 'small'")}


def run(home: Path, suite: str = "small.toml") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(home, suite), cwd=home.parent, env=environment(), capture_output=True, text=True, timeout=500)


@pytest.mark.long
def test_a_killed_suite_goes_on_and_does_nothing_twice(home: Path) -> None:
    kill_at("eval-t1-rl-small  step", command(home), home.parent, environment())
    before = stored(home)
    assert 0 < len(before) < ATTEMPTS
    done = run(home)
    assert done.returncode == 0, done.stderr[-3000:]
    after = stored(home)
    assert len(after) == ATTEMPTS
    assert {key: after[key] for key in before} == before, "what was done was not done again"
    assert f"step {ATTEMPTS - len(before)}/{ATTEMPTS - len(before)}" in done.stderr
    with Lake(home, read_only=True) as lake:
        assert len(lake.scores()) == ATTEMPTS
        assert lake.query("SELECT wanted, judged, missing, is_result FROM suite_coverage").to_pylist() == [
            {"wanted": ATTEMPTS, "judged": ATTEMPTS, "missing": 0, "is_result": True}
        ]
    told = json.loads(done.stdout)
    assert told["coverage"]["judged"] == ATTEMPTS and told["headline"]["name"] == "pass@2"
    assert told["ladder"][0]["name"] == "average@2" and told["cost"]["attempts"] == ATTEMPTS

    again = run(home)
    assert (again.returncode, again.stderr) == (0, ""), "nothing was left to do, and nothing was started"
    assert json.loads(again.stdout) == told
    tasks = home.parent / "tasks.jsonl"
    tasks.write_text(tasks.read_text() + "{broken\n")
    refused = subprocess.run([*command(home), "--set", "name=broken"], cwd=home.parent, env=environment(), capture_output=True, text=True)
    assert refused.returncode == 2 and refused.stdout == ""
    assert refused.stderr.splitlines()[-1].startswith(f"flywheel: row {ATTEMPTS // 2 + 1} of tasks.jsonl")
    assert stored(home) == after
