"""`flywheel init`: the first policy of a home, of a model or from scratch, without a wheel; a wheel that follows begins with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.home import Home
from flows.plan import completed
from tests.rl.conftest import create_tiny_policy
from warehouse import Lake

pytestmark = pytest.mark.end_to_end

SMALL = Path(__file__).parent / "small.toml"


def init(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli", "init", "--home", str(home), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.long
def test_a_model_becomes_the_first_policy_and_nothing_else_is_made(tmp_path: Path) -> None:
    create_tiny_policy(tmp_path / "model", seed=0)
    home = tmp_path / "home"
    own = ("--profile", str(SMALL), "--set", f"policy.path={tmp_path / 'model'}", "--set", "rollout.limits.max_context_tokens=200")
    told = json.loads(init(home, *own, "--json").stdout)
    assert told["policy"] == "t0-init" and (Path(told["path"]) / "config.json").is_file()
    with Lake(home, read_only=True) as lake:
        assert [(policy.id, policy.stage) for policy in lake.policies()] == [("t0-init", "init")]
        assert not lake.tasks() and not lake.examples()
    assert "nothing to do" in init(home).stderr


@pytest.mark.long
def test_one_from_scratch_comes_after_the_text_of_its_tokenizer(tmp_path: Path) -> None:
    told = init(tmp_path / "home", "--profile", str(SMALL)).stdout
    assert "t0-init in" in told and "flywheel eval" in told
    assert completed(Home(tmp_path / "home")) == {"t1-synth", "t0-init"}
