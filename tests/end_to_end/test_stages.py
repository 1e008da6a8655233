"""A wheel whose owner leaves stages out: what it does, what it starts from, what it makes no data for, and what its gate looks at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.config import load_config
from flows.plan import turn_steps
from warehouse import Lake
from warehouse.errors import RequestError

SMALL = str(Path(__file__).parent / "small.toml")
ZERO_RL = 'wheel.stages=["rl"]'


def run_ids(stages: str, turn: int, *settings: str) -> list[str]:
    return [step.run_id for step in turn_steps(load_config(SMALL, [f"wheel.stages={stages}", *settings]), turn)]


def test_the_plan_has_the_stages_that_were_chosen_and_tries_the_first_policy_where_it_skips_pre_training() -> None:
    rl, sft = (["eval-t{turn}-rl-held_out", "eval-t{turn}-rl-validation"], ["eval-t1-sft-held_out", "eval-t1-sft-validation"])
    first, second = ([name.format(turn=turn) for name in rl] for turn in (1, 2))
    assert run_ids('["rl"]', 1) == ["t1-synth", "t0-init", "eval-t0-init-held_out", "t1-rl", *first, "t1-gate"]
    assert run_ids('["rl"]', 2) == ["t2-synth", "t2-rl", *second, "t2-gate"]
    assert run_ids('["rl"]', 1, "policy.path=reader")[:2] == ["t0-init", "t1-synth"], "its engines start while questions are made"
    assert run_ids('["rl"]', 1, 'later.wheel.stages=["sft"]') == run_ids('["rl"]', 1), "the first iteration is as it was"
    assert run_ids('["rl"]', 2, 'later.wheel.stages=["sft"]')[:2] == ["t2-synth", "t2-sft"]
    assert run_ids('["cpt", "sft"]', 1)[2:] == ["t1-cpt", "eval-t1-cpt-held_out", "t1-sft", *sft, "t1-gate"]


@pytest.mark.parametrize("stages", ['["rl", "sft"]', '["rl", "rl"]', "[]", '["dpo"]', "rl"])
def test_stages_that_make_no_wheel_are_refused(stages: str) -> None:
    with pytest.raises(RequestError, match=r"wheel\.stages"):
        load_config(SMALL, [f"wheel.stages={stages}"])


@pytest.mark.end_to_end
@pytest.mark.long
def test_zero_rl_starts_from_the_first_policy_and_its_gate_promotes_what_rl_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "run", "--profile", SMALL, "--home", str(tmp_path / "home"), "--set", ZERO_RL]
    dry = subprocess.run([*command, "--dry-run", "--json"], capture_output=True, text=True, timeout=550, check=True)
    assert "t1-cpt" not in dry.stdout and "t1-sft" not in dry.stdout and json.loads(dry.stdout)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr[-2000:]
    with Lake(tmp_path / "home", read_only=True) as lake:
        assert {run.id for run in lake.runs("state = 'completed'")} == set(run_ids('["rl"]', 1))
        policies = {policy.id: policy for policy in lake.policies()}
        learned = policies["t1-rl"].weights_digest != policies["t0-init"].weights_digest
        assert policies["t1-rl"].parent == "t0-init" and policies["t1-rl"].promoted == learned
        assert {example.kind for example in lake.examples()} == {"document", "fas_plan", "fas_reason"}, "its tokenizer reads them"
        tried = lake.query("SELECT DISTINCT stage FROM evaluations").column("stage").to_pylist()
    assert set(tried) == {"init", "rl"}
    again = subprocess.run(command, capture_output=True, text=True, timeout=550)
    assert again.returncode == 0 and "nothing to do" in again.stderr
    assert (tmp_path / "home" / "report.html").stat().st_size > 10_000
