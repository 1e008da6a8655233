"""What the environment over tools makes of their results: the three outcomes, whatever a tool does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rl.content import ImagePart, TextPart
from rl.envs.base import EnvironmentFault, Step, ToolOutcome
from rl.envs.tool_use import ToolEnvironment
from rl.renderers.base import Action, Truncation
from rl.renderers.tags import TagDialect
from rl.tools.config import CallRules
from rl.tools.python_tools import FunctionTool
from tests.rl.tools.examples import HOSTILE, LIES, PNG, give, lie

QUICK, PATIENT = (CallRules(timeout_seconds=seconds, max_characters=1000) for seconds in (0.2, 60.0))
"""For tools that may hang, and for those that do not."""


async def answer_of(function: Callable[..., Any], argument: str, rules: CallRules = PATIENT) -> Step:
    return await ToolEnvironment({"tool": FunctionTool(function, rules=rules)}).step(Action("tool", argument))


async def test_rewards_figures_and_images_come_with_the_step() -> None:
    rewarded = await answer_of(give, "reward")
    assert (rewarded.observation, rewarded.reward) == ("well done", 0.5)
    assert rewarded.info == {"arguments": {"what": "reward"}, "figures": {"seconds": 0.1}}
    seen = await answer_of(give, "parts")
    assert seen.parts == (TextPart("see:"), ImagePart(PNG, "image/png"))
    assert seen.observation == "see:\n[image/png, 69 bytes]"


@pytest.mark.parametrize("how", sorted(LIES))
async def test_every_lie_ends_in_an_observation_or_in_a_fault_that_names_the_tool(how: str) -> None:
    try:
        step = await answer_of(lie, how, QUICK)
    except EnvironmentFault as fault:
        assert "the tool 'lie' failed: " in str(fault)
        return
    assert step.tool_outcome in (ToolOutcome.OK, ToolOutcome.ERROR)
    assert len(step.observation) <= 1000 + len("Error: ")
    step.observation.encode()


async def test_what_a_tool_returns_never_becomes_a_control_token(tiny_policy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    dialect = TagDialect(tokenizer)
    ids = dialect.observation_ids((await answer_of(lie, "hostile")).observation, Truncation(100))
    assert HOSTILE.split("\x00")[0] in dialect.decode(ids)
    assert not set(tokenizer.get_added_vocab().values()) & set(ids[1:-1])
