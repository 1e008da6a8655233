"""A tool of one's own end to end: a file names it, a real engine samples the calls, a real worker answers them.

The policy is taught one trajectory by heart, so that it calls the tool.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rl.policies.policy import load_policy, save_policy
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts
from warehouse.errors import RequestError
from warehouse.records import Outcome, StopReason, Task

TASKS = [Task("k", environment, "Where is Amber Stone?", ("Green Lake",)) for environment in ("tools", "hanging", "dead")]
TEXT = (
    "<question> Where is Amber Stone?</question><code> Amber Stone</code><information> Green Lake</information><answer> Green Lake</answer>"
)
TOOLS = '''
import time

from rl.tools import ToolResult, tool

PLACES = {"Amber Stone": "Green Lake"}


@tool(probe={"name": "Amber Stone"})
def find(name: str) -> ToolResult:
    """Find a place."""
    return ToolResult(text=PLACES[name], reward=0.25)


def hang(name: str) -> str:
    """Find a place, or never."""
    time.sleep(30)
    return name
'''
FILES = {
    "tools": '[tools.code]\nfunction = "mine.py:find"',
    "hanging": '[tools.code]\nfunction = "mine.py:hang"\ntimeout_seconds = 0.2',
    "dead": '[tools.code]\nfunction = "mine.py:find"\nprobe = { name = "Nowhere" }',
}


def configuration(folder: Path) -> RolloutConfig:
    """One environment for each file of tools."""
    (folder / "mine.py").write_text(TOOLS)
    kinds = {}
    for name, text in FILES.items():
        (folder / f"{name}.toml").write_text(text)
        kinds[name] = {"factory": "tools", "options": {"file": str(folder / f"{name}.toml")}, "cpus": 0.1}
    limits = {"max_action_tokens": 16, "max_observation_tokens": 48, "max_context_tokens": 200}
    return RolloutConfig.model_validate({"limits": limits, "engine": {"kv_cache_gib": 0.1}, "environments": {"kinds": kinds}})


def taught(policy: Path, folder: Path) -> Path:
    """A policy that knows `TEXT` by heart."""
    model, tokenizer = load_policy(policy)
    ids = torch.tensor([tokenizer(TEXT, add_special_tokens=False)["input_ids"]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    save_policy(model, tokenizer, folder)
    return folder


@pytest.mark.long
@pytest.mark.engine
def test_a_policy_calls_a_tool_of_ones_own(tiny_policy: Path, tmp_path: Path) -> None:
    config = configuration(tmp_path)
    requests = [RolloutRequest(f"t{i}", TASKS[i % 2], "taught", 3, seed=i, temperature=0.0) for i in range(6)]
    with Rollouts.start(config, taught(tiny_policy, tmp_path / "taught")) as rollouts:
        trajectories = rollouts.rollout(requests)
        with pytest.raises(RequestError, match="the tool 'code' is dead: KeyError: 'Nowhere'"):
            rollouts.rollout([RolloutRequest("x", TASKS[2], "taught", 3, seed=0)])
    good, hung = trajectories[0::2], trajectories[1::2]
    assert {trajectory.stop_reason for trajectory in good} == {StopReason.ANSWERED}
    assert {trajectory.answer for trajectory in good} == {"Green Lake"}
    called = good[0].turns[0]
    assert (called.tool, called.arguments, called.tool_outcome, called.reward) == ("code", "Amber Stone", "ok", 0.25)
    assert called.observation == "<information> Green Lake</information>"
    assert {trajectory.outcome for trajectory in hung} == {Outcome.INVALID}
    assert all("the tool 'code' failed: it took longer than 0.2 seconds" in str(trajectory.error) for trajectory in hung)
